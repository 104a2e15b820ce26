"""Saved models: frames are matched by the names of their columns, files are not trusted."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from fedconvex import Logistic, SmoothedHinge, Softmax, Squared
from fedconvex.models import LinearModel

MODEL = LinearModel(np.array([2.0, -1.0]), np.array(0.5), ("no", "yes"), ("age", "dose"), {"l2": 0.1})


def test_frames_are_matched_by_name():
    """Columns in another order would give other predictions, without a word."""
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"age": [1.0, 0.0], "dose": [0.0, 9.0]})
    assert MODEL.predict(frame).tolist() == ["yes", "no"]
    with pytest.raises(
        ValueError, match=r"columns age, dose, in this order; got dose, age: pass X\[\['age', 'dose'\]\]"
    ):
        MODEL.predict(frame[["dose", "age"]])
    with pytest.raises(ValueError, match=r"got age, ward$"):
        MODEL.predict(frame.rename(columns={"dose": "ward"}))
    with pytest.raises(ValueError, match="got age, dose, more: pass"):
        MODEL.predict(frame.assign(more=1.0))
    assert MODEL.predict(frame.to_numpy()).tolist() == ["yes", "no"]


@pytest.mark.parametrize("gap", [np.nan, np.inf])
def test_a_missing_number_is_no_class(gap):
    with pytest.raises(ValueError, match=r"decision_function: X must be finite"):
        MODEL.predict([[gap, 1.0]])
    with pytest.raises(ValueError, match=r"decision_function: X must be finite"):
        MODEL.predict(sp.csr_array([[gap, 1.0]]))


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.pop("classes"),
        lambda a: a.pop("feature_names"),
        lambda a: a.update(classes="no"),
        lambda a: a.update(classes=3),
        lambda a: a.update(classes=["yes", "yes"]),
        lambda a: a.update(classes=["a", "b", "c"]),
        lambda a: a.update(feature_names=None),
        lambda a: a.update(feature_names=["age"]),
        lambda a: a.update(feature_names=[1, 2]),
        lambda a: a.update(feature_names="ab"),
        lambda a: a.update(format="another"),
    ],
)
def test_every_wrong_field_is_named(tmp_path, change):
    MODEL.save(tmp_path)
    about = json.loads((tmp_path / "model.json").read_text())
    change(about)
    (tmp_path / "model.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match=r"LinearModel.*must"):
        LinearModel.load(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "null", '"x"', "\ud800"])
def test_other_descriptions(tmp_path, content):
    MODEL.save(tmp_path)
    (tmp_path / "model.json").write_bytes(content.encode(errors="surrogatepass"))
    with pytest.raises(ValueError, match=r"LinearModel.load"):
        LinearModel.load(tmp_path)


@pytest.mark.parametrize(
    "arrays",
    [
        {"coef": np.ones(2)},
        {"coef": np.ones((2, 2)), "intercept": np.zeros(2)},
        {"coef": np.array([1.0, np.nan]), "intercept": np.array(0.0)},
        {"coef": np.array(["a", "b"]), "intercept": np.array(0.0)},
        {"coef": np.ones(3), "intercept": np.array(0.0)},
    ],
)
def test_other_numbers(tmp_path, arrays):
    MODEL.save(tmp_path)
    np.savez(tmp_path / "model.npz", **arrays)
    try:
        other = LinearModel.load(tmp_path)
    except (TypeError, ValueError) as error:
        assert "LinearModel" in str(error)
    else:  # two outputs for two classes: another model, but a model
        assert other.coef.shape == (2, 2)


def test_a_gap_that_certifies_nothing_is_not_saved(tmp_path):
    for gap in (np.inf, np.float64("nan")):
        model = replace(MODEL, about={"gap": gap})
        with pytest.raises(ValueError, match=r"about\['gap'\] must be finite; got (inf|nan): a gap of inf certifies"):
            model.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["SmoothedHinge(gamma=" + 10**5 * "-" + "1)", 10**5 * "(", "Softmax(n_classes=[3])"])
def test_texts_that_name_no_loss(text):
    """As an expression of Python the first ones exceed the depth of every parser."""
    assert replace(MODEL, about={"loss": text}).loss is None


def test_losses_are_read_back_from_their_texts():
    for loss in (Squared(), Logistic(), SmoothedHinge(0.25), Softmax(3)):
        got = replace(MODEL, about={"loss": repr(loss)}).loss
        assert repr(got) == repr(loss)


def test_a_description_that_is_nested_too_deeply(tmp_path):
    MODEL.save(tmp_path)
    (tmp_path / "model.json").write_text(10**5 * "[")
    with pytest.raises(ValueError, match="nested too deeply"):
        LinearModel.load(tmp_path)

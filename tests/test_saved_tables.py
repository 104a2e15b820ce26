"""Models of tables: raw rows in, predictions out, in Python and from files, bit for bit."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedconvex import FedAvg, Federation, Logistic, Problem, Softmax, Squared, run
from fedconvex.cli import main
from fedconvex.models import LinearModel
from fedconvex.problems import MeanRegularised, MultiTaskProblem
from fedconvex.tables import UnknownCategory, read_table

pd = pytest.importorskip("pandas")


def patients(n=120, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.integers(20, 80, n).astype(float)
    age[rng.random(n) < 0.1] = np.nan
    sex, ward = rng.choice(["f", "m", "x"], n), rng.choice(["north", "south", "west"], n)
    dose = rng.normal(size=n)
    ill = np.where(dose + (sex == "f") + rng.normal(size=n) > 0.5, "yes", "no")
    return pd.DataFrame({"age": age, "sex": sex, "ward": ward, "dose": dose, "ill": ill})


@pytest.fixture(scope="module")
def fitted():
    fed = Federation.from_frame(patients(), "ill", "ward", impute="indicator", intercept=True)
    problem = Problem(fed, Logistic(), 0.01, intercept=True)
    return run(FedAvg(step_size=0.5), problem, rounds=30)


def test_raw_rows_are_what_was_trained_on(fitted):
    """The scores of raw rows are those of the optimised model on its standardised rows."""
    frame = patients()
    fed = fitted.problem.federation
    order = np.argsort(np.unique(frame["ward"], return_inverse=True)[1], kind="stable")
    np.testing.assert_allclose(fitted.decision_function(frame)[order], fed.X @ fitted.w, rtol=1e-11, atol=1e-12)
    p = fitted.predict_proba(frame)
    np.testing.assert_allclose(p[order, 1], 1.0 / (1.0 + np.exp(-fed.X @ fitted.w)), rtol=1e-11)
    assert (np.array(["no", "yes"])[p.argmax(axis=1)] == fitted.predict(frame)).all()


def test_a_file_predicts_bit_for_bit(fitted, tmp_path):
    fitted.save(tmp_path / "m")
    model, rows = LinearModel.load(tmp_path / "m"), patients(40, seed=1)
    rows.drop(columns="ill").to_csv(tmp_path / "new.csv", index=False)
    assert model.decision_function(rows).tolist() == fitted.decision_function(rows).tolist()
    assert model.predict_proba(tmp_path / "new.csv").tolist() == fitted.predict_proba(rows).tolist()
    assert (
        model.about["l2"] == 0.01 and model.about["method"].startswith("FedAvg(") and len(model.about["digest"]) == 32
    )
    one = [model.decision_function(rows.iloc[[i]])[0] for i in range(len(rows))]
    assert one == model.decision_function(rows).tolist()  # whatever stands beside a row


def test_columns_are_found_by_name(fitted):
    rows = patients(30, seed=2)
    z = fitted.decision_function(rows)
    assert fitted.decision_function(rows[["sex", "dose", "age"]].assign(more=1)).tolist() == z.tolist()
    assert fitted.decision_function(rows[["age", "sex", "dose"]].to_numpy()).tolist() == z.tolist()
    with pytest.raises(ValueError, match=r"have the columns age, sex, dose, in any order; got no 'age', but 'Age'"):
        fitted.predict(rows.rename(columns={"age": "Age"}))
    with pytest.raises(ValueError, match=r"column 'age' must hold numbers; got 'old' in row 1"):
        fitted.predict(rows.assign(age="old"))
    with pytest.raises(ValueError, match=r"1 missing in column 'dose', the first in row 3|have no missing") as caught:
        Federation.from_frame(rows.fillna(1.0), "ill", "ward").columns.matrix(
            read_table(rows.fillna(1.0).assign(dose=[1, 1, None] + [1] * 27), guard=False, impute="mode")[0]
        )
    assert "row 3" in str(caught.value)


def test_unknown_categories_are_none_of_them(fitted):
    rows = patients(3, seed=3).assign(sex=["f", "?!", "?!"])
    with pytest.warns(
        UnknownCategory, match=r"no training row had '\?!' \(2 rows\) in column 'sex'; it counts as none"
    ):
        z = fitted.decision_function(rows)
    model = fitted.model()
    x = model.columns.matrix(read_table(rows, guard=False, impute="mode")[0], unknown="zero")
    assert x[1, [model.feature_names.index(f"sex={v}") for v in "fmx"]].tolist() == [0.0, 0.0, 0.0]
    assert z[1] == (x[1] * model.coef).sum() + model.intercept


def test_softmax_and_real_targets(tmp_path):
    frame = patients().fillna(50.0)
    fed = Federation.from_frame(frame, "sex", "ward", signs=False, drop=["ill"])
    best = Problem(fed, Softmax(3), 0.1).solve()
    best.save(tmp_path)
    again = LinearModel.load(tmp_path)
    assert again.predict(frame).tolist() == best.predict(frame).tolist() and set(again.classes) == {"f", "m", "x"}
    np.testing.assert_allclose(again.predict_proba(frame).sum(axis=1), 1.0, rtol=1e-14)
    fed = Federation.from_frame(frame, "dose", "ward", drop=["ill"], intercept=True, standardise_target=True)
    best = Problem(fed, Squared(), intercept=True).solve()
    A = np.column_stack([frame["age"], *(frame["sex"] == v for v in "fmx")]).astype(float)
    expected = A @ np.linalg.lstsq(A, frame["dose"].to_numpy(), rcond=None)[0]
    np.testing.assert_allclose(best.predict(frame), expected, rtol=1e-8, atol=1e-10)
    with pytest.raises(TypeError, match="predict_proba must be asked of a classifier"):
        best.predict_proba(frame)


def test_a_model_per_client(tmp_path):
    frame = patients().fillna(50.0)
    fed = Federation.from_frame(frame, "ill", "ward", intercept=True)
    best = MultiTaskProblem(fed, Logistic(), MeanRegularised(0.1, 0.1)).solve(1e-8)
    best.save(tmp_path)
    model = LinearModel.load(tmp_path)
    assert model.clients == ("north", "south", "west") and model.coef.shape == (3, 5)
    z = model.decision_function(frame)
    order = np.argsort(np.unique(frame["ward"], return_inverse=True)[1], kind="stable")
    own = np.einsum("ij,ij->i", fed.X, best.w[np.repeat(np.arange(3), fed.sizes)])
    np.testing.assert_allclose(z[order], own, rtol=1e-9, atol=1e-10)
    assert model.decision_function(frame, clients=frame["ward"]).tolist() == z.tolist()
    mean = LinearModel(
        model.coef.mean(axis=0), model.intercept.mean(), model.classes, model.feature_names, {}, model.columns
    )
    assert model.decision_function(frame.assign(ward="east")).tolist() == mean.decision_function(frame).tolist()
    assert model.unknown_clients(["east", "west", "east"]) == ["east"]
    with pytest.raises(ValueError, match="say whose rows they are; got nothing: pass clients="):
        model.predict(frame.drop(columns="ward"))
    assert model.to_frame().shape == (6, 3) and list(model.to_frame().columns) == ["north", "south", "west"]
    with pytest.raises(ValueError, match="must name the client of every row; got 1 missing, the first in row 2"):
        model.predict(frame, clients=["north", None] + ["west"] * (len(frame) - 2))
    rows = frame.assign(ward=["north", None] + ["west"] * (len(frame) - 2))
    rows.to_csv(tmp_path / "rows.csv", index=False)
    assert main(["predict", str(tmp_path), str(tmp_path / "rows.csv")]) == 2  # "None" was an unknown client, it was


def test_whole_numbers_name_clients_however_they_are_held():
    model = LinearModel(np.array([[1.0], [2.0]]), np.zeros(2), None, ("x",), clients=(1, 2))
    for names in ([2, 1, 3], [2.0, 1.0, 3.0], ["2", "1", "3"]):
        assert model.predict(np.ones((3, 1)), names).tolist() == [2.0, 1.0, 1.5]
        assert len(model.unknown_clients(names)) == 1


FIELDS = ["loss", "l2", "penalty", "method", "gap", "certificate", "data", "digest", "version", "classes", "clients"]
FIELDS += ["feature_names", "table", "unknown_client", "format", "kind"]


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_is_missed_and_checked(fitted, tmp_path, field):
    fitted.save(tmp_path)
    file = tmp_path / "model.json"
    good = json.loads(file.read_text())
    assert field in good
    file.write_text(json.dumps({k: v for k, v in good.items() if k != field}))
    with pytest.raises(ValueError, match=rf"LinearModel.load: .*model.json.* must .*{field}"):
        LinearModel.load(tmp_path)
    if field != "version":
        file.write_text(json.dumps({**good, field: {"odd": 1}}))
        with pytest.raises(ValueError, match=rf"LinearModel.load: .*model.json.* must .*|.*{field}"):
            LinearModel.load(tmp_path)


@pytest.mark.parametrize("name", ["impute", "target_center", "target_scale", "rows", "is_sparse", "origin", "read_as"])
def test_every_field_of_the_table_is_checked(fitted, tmp_path, name):
    fitted.save(tmp_path)
    file = tmp_path / "model.json"
    good = json.loads(file.read_text())
    for change in (lambda t: t.pop(name), lambda t: t.update({name: []})):
        table = dict(good["table"])
        change(table)
        file.write_text(json.dumps({**good, "table": table}))
        with pytest.raises(ValueError, match=rf"model.json: table.*{name}"):
            LinearModel.load(tmp_path)


@pytest.mark.parametrize(
    "change",
    [{"role": "magic"}, {"role": None}, {"levels": [1]}, {"levels": None}, {"name": 3}, {"more": 1}, {"fill": []}],
)
def test_every_field_of_a_column_is_checked(fitted, tmp_path, change):
    fitted.save(tmp_path)
    file = tmp_path / "model.json"
    good = json.loads(file.read_text())
    place = [c["name"] for c in good["table"]["columns"]].index("sex")
    good["table"]["columns"][place].update(change)
    file.write_text(json.dumps(good))
    with pytest.raises(ValueError, match=rf"table: columns\[{place}\].* must"):
        LinearModel.load(tmp_path)


def test_results_without_a_table(tmp_path):
    fed = Federation.from_arrays(
        np.random.default_rng(0).normal(size=(30, 2)), np.tile([1.0, -1.0], 15), np.arange(30) % 3
    )
    problem = Problem(fed.with_intercept(), Logistic(), 0.1, intercept=True)
    best = problem.solve()
    X = fed.X
    assert best.predict(X).tolist() == problem.predict(best.w).astype(int).tolist()
    assert best.to_frame().index.tolist() == ["x1", "x2", "(intercept)"]
    several = run(FedAvg(step_size=np.array([0.1, 0.2])), problem, rounds=2, trajectories=2)
    with pytest.raises(ValueError, match="which of 2 trajectories; got None: pass trajectory="):
        several.predict(X)
    assert several.model(1).coef.tolist() == several.w[1][:2].tolist()


def test_pickles_leave_the_rows_behind(fitted):
    import pickle

    again = pickle.loads(pickle.dumps(fitted))
    assert again.problem is None and again.w.tolist() == fitted.w.tolist()
    with pytest.raises(ValueError, match=r"know its problem; got one that was unpickled .*: save models with \.save"):
        again.predict(patients(3))

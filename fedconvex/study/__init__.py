"""A study: sites that keep their rows agree on a file, and analyse and solve together over a network."""

from typing import TYPE_CHECKING

from fedconvex import _lazy

if TYPE_CHECKING:
    from fedconvex.study.agreement import read_study
    from fedconvex.study.site_check import check_site
    from fedconvex.study.site_settings import read_site

__all__ = ["check_site", "read_site", "read_study"]

__getattr__, __dir__ = _lazy.attach(__name__, __file__)

"""The one driver: samples clients, lets the method work, counts what is sent, measures, stops, checkpoints."""

from fedconvex.driver.execution import run
from fedconvex.driver.result import DivergenceWarning, Result, Status, Trace
from fedconvex.driver.rounds import iterate

__all__ = ["DivergenceWarning", "Result", "Status", "Trace", "iterate", "run"]

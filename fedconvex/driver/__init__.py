"""The one driver: samples clients, lets the method work, counts what is sent, measures, stops, checkpoints."""

from fedconvex.driver.defaults import first_state, measure, participants
from fedconvex.driver.execution import run
from fedconvex.driver.result import DivergenceWarning, Result, Status, Trace
from fedconvex.driver.rounds import iterate

__all__ = ["DivergenceWarning", "Result", "Status", "Trace", "first_state", "iterate", "measure", "participants", "run"]

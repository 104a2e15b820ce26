"""What all have agreed on: columns, units, objective, method, and who takes part. It holds no patient's row."""

from fedconvex import SCAFFOLD, Federation, Logistic, Problem
from fedconvex.remote import Roster
from fedconvex.tables import read_table

# a code book of two invented patients: ages count from 60 in units of 10 years, doses from 5 in units of 2 mg
BOOK = {"age": [50, 70], "dose": [3, 7], "smoker": ["no", "yes"], "ill": ["no", "yes"], "hospital": ["a", "b"]}
frame, roles = read_table(BOOK, target="ill", client="hospital")
columns = roles.fit(frame)

method = SCAFFOLD(step_size=0.5, local_steps=5)


def rows_of(table):
    return Federation.from_frame(table, columns=columns, intercept=True)


def make(federation):
    return Problem(federation, Logistic(), l2=0.1)


roster = Roster(make, labels=["north", "east", "south"], sizes=[120, 80, 200], features=5)

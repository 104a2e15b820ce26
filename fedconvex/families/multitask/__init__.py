"""Models of related tasks: MOCHA and what it is measured against (Smith, Chiang, Sanjabi, Talwalkar, NIPS 2017)."""

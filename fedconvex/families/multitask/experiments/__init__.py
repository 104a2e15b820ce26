"""Smith, Chiang, Sanjabi, Talwalkar (NIPS 2017): certified models of related tasks, and stragglers."""

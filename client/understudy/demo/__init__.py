"""`understudy demo`: the whole product on this machine, on real data, with one command."""

"""The proof: real processes under load and faults, a recorded history, and claims that are checked against it.

The pure half judges (`history`, `truth_of_state`, `schedule`, `checker` and the claims); the other half acts.
docs/proof.md says what is proven and how to run it.
"""

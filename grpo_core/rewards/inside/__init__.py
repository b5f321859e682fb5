"""What runs inside the sandboxes. Only the standard library and each other are imported here, and as little as will do.

``candidate`` and ``program`` run the code of a response, ``examiner`` runs the tests; ``peer`` and ``wire`` are how
candidate and examiner talk, ``confine`` is what each does first.
"""

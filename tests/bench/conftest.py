"""Speed is measured when it is asked for (`make prove`, EVENFLOW_PROVE=1) and never decides over the suite.

Not collected otherwise, rather than skipped: a suite that always reports skips hides the one that matters. The tests of
the bench itself look at what it counts and says, not at speed, and always run.
"""

import os

collect_ignore_glob = [] if os.environ.get("EVENFLOW_PROVE") == "1" else ["test_*_speed.py"]

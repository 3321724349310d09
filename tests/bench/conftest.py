"""Speed is measured when it is asked for (`make prove`, EVENFLOW_PROVE=1) and never decides over the suite.

Not collected otherwise, rather than skipped: a suite that always reports skips hides the one that matters.
"""

import os

collect_ignore_glob = [] if os.environ.get("EVENFLOW_PROVE") == "1" else ["test_*.py"]

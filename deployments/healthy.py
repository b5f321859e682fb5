"""``python -m deployments.healthy URL``: exit 0 when a service says that it is well. For images that have no curl."""

import sys
import urllib.request

if __name__ == "__main__":
    # Raises, and so exits with 1, on an answer of 400 or above and where nothing answers.
    urllib.request.urlopen(sys.argv[1], timeout=5).close()

"""`python3 -m flare.bench.gpu`: the visit of `script.py`, or what it lacks in one line."""

import sys
from importlib.util import find_spec

from flare.ops import CUDA_PACKAGES

if __name__ == "__main__":
    absent = [package for package in CUDA_PACKAGES if find_spec(package) is None]
    if absent:  # the kernels cannot even be imported
        print(f"a visit needs {' and '.join(absent)}: python -m pip install 'flare[cuda]'", file=sys.stderr)
        sys.exit(2)
    from flare.bench.gpu.script import main

    sys.exit(main())

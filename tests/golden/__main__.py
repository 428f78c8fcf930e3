"""`python -m tests.golden [DEVICE]`: how many recorded cases of each family come out as recorded. See golden_counts."""

from __future__ import annotations

import sys

from tests.golden.golden_counts import count_families


def main() -> int:
    failed = 0
    for found in count_families(sys.argv[1] if len(sys.argv) > 1 else "cpu"):
        failed += found.total - found.right
        print(f"{found.family:<26} {found.right:>4} of {found.total}" + (f"   ({found.note})" if found.note else ""))
    print(f"{failed} cases differ." if failed else "Every case is exact.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

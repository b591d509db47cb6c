import sys

from runners.headroom.command import main

if __name__ == "__main__":
    sys.exit(main())

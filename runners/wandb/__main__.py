import sys

from runners.wandb.command import main

if __name__ == "__main__":
    sys.exit(main())

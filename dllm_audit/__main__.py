"""`python -m dllm_audit` is `dllm-audit`."""

from dllm_audit.cli.main import main

if __name__ == "__main__":
    main()

#!/usr/bin/env bash
# tests/clients/run.sh - ask transformers and PyTorch; `make test-clients` calls this.
exit 1

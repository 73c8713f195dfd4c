"""Starts llama.cpp's server from the PyPI package `xllamacpp` and prints its address; ends on SIGTERM.

    peer_llamacpp.py MODEL.gguf THREADS [CONTEXT]
"""
import signal
import sys

import xllamacpp

model, threads, context = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 8192
params = xllamacpp.CommonParams()
params.model.path = model
params.n_ctx = context
params.n_parallel = 1
params.cpuparams.n_threads = threads
params.cpuparams_batch.n_threads = threads
params.hostnames = ["127.0.0.1"]
params.port = 0
params.verbosity = 0
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
signal.sigwait({signal.SIGTERM, signal.SIGINT})

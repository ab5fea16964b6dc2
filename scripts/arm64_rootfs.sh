#!/usr/bin/env bash
# ARM computers for those who have none: Debian arm64 under QEMU's user-mode emulation, reached by a real sshd.
#
#   arm64_rootfs.sh build FOLDER                            download and unpack the trees; at once if they are there
#   arm64_rootfs.sh serve FOLDER pi|termux PORT PUBLIC_KEY  run one on 127.0.0.1 until this process ends
#
# `pi` is Debian with Python, reached as root. `termux` is the same made to look like Termux, reached as u0_a123: home
# in /data/data/com.termux/files, a Python that takes itself for Android's, `pkg` with onnxruntime 1.29 and numpy, no
# tokenizers, no reading of /proc/stat and /sys.
#
# A served computer has mounts and processes in namespaces of its own and its disk in memory: when this process ends,
# however that is, all of it is gone, and the trees are as they were. Packages come from apt's mirror and, in the
# computer, from pip's index, as both are set here. To be run as root; PYTHON is the Python whose pip is asked.
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin
SUITE=bookworm
QEMU=aarch64
FILES=/data/data/com.termux/files
BINFMT=/proc/sys/fs/binfmt_misc

# Something is missing: rights, a program, packages. Tests take the exit code for a reason to be skipped.
fail() {
    echo "error: $*" >&2
    exit 77
}

require() {
    [ "$(id -u)" = 0 ] || fail "not root: mounts, chroot and debootstrap need that"
    local program
    for program in debootstrap dpkg-deb unshare "qemu-$QEMU-static"; do
        command -v "$program" >/dev/null || fail "no $program: apt install debootstrap qemu-user-static util-linux"
    done
    unshare --mount --pid --fork true 2>/dev/null || fail "no namespaces can be made here: CAP_SYS_ADMIN is needed"
}

# --- build ---

build() {
    mkdir -p "$1"
    cd "$1"
    exec 9>.lock
    flock 9
    if [ "$(cat made-by 2>/dev/null)" != "$(made_by)" ]; then
        rm -rf pi termux
        made_by >made-by
    fi
    mkdir -p debs disk
    layer pi
    layer termux
}

made_by() {
    declare -f build_pi build_termux compile | sha256sum
}

# A layer has its name once it is whole.
layer() {
    if [ ! -d "$1" ]; then
        rm -rf "$1.partial"
        "build_$1" "$PWD/$1.partial"
        mv "$1.partial" "$1"
    fi
}

# Debootstrap picks, checks and downloads; packages are unpacked but not set up, which would take emulation minutes.
build_pi() {
    local tree=$1 mirror deb
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' | grep -v security |
        head -n 1) || fail "apt knows no mirror of Debian here"
    debootstrap --arch=arm64 --foreign --variant=minbase --include=python3,python3-venv,openssh-server \
        --cache-dir="$PWD/debs" "$SUITE" "$tree" "$mirror" >"$PWD/debootstrap.log" 2>&1 ||
        fail "debootstrap failed: $(tail -n 1 "$PWD/debootstrap.log")"
    for deb in "$tree"/var/cache/apt/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$deb" | tar --extract --keep-directory-symlink --directory="$tree"
    done
    rm -rf "$tree"/{debootstrap,var/cache/apt/archives,proc,usr/share/doc,usr/share/man,usr/share/locale}
    mkdir -p "$tree"/{proc,run/sshd}
    cp "$tree/usr/share/base-passwd/passwd.master" "$tree/etc/passwd"
    cp "$tree/usr/share/base-passwd/group.master" "$tree/etc/group"
    echo 'sshd:*:100:65534::/run/sshd:/usr/sbin/nologin' >>"$tree/etc/passwd"
    compile "$tree" /usr/lib/python3.11
}

# The bytecode that setting up packages makes. A Python here of another version cannot: things are slower then.
compile() {
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || return 0
    "$PYTHON" -m compileall -q -s "$1" -p / "$1$2" || true # Debian ships a few files that are no Python
}

# What differs from `pi`, to be laid over it.
build_termux() {
    local tree=$1 packages=$1$FILES/packages platforms=(manylinux_2_{28,27,17}_aarch64)
    mkdir -p "$tree"/{etc/python3.11,usr/local/bin} "$tree$FILES/home" "$packages"
    "$PYTHON" -m pip install --quiet --only-binary :all: --no-compile --target "$packages" --python-version 3.11 \
        "${platforms[@]/#/--platform=}" 'onnxruntime==1.29.*' numpy >"$PWD/pip.log" 2>&1 ||
        fail "pip cannot install for aarch64: $(tail -n 1 "$PWD/pip.log")"
    compile "$tree" "$FILES/packages"
    ln -s /usr "$tree$FILES/usr"
    cp pi/etc/passwd pi/etc/group "$tree/etc"
    echo "u0_a123:*:10123:10123::$FILES/home:$FILES/usr/bin/bash" >>"$tree/etc/passwd"
    echo 'u0_a123:*:10123:' >>"$tree/etc/group"
    # pip takes no wheels for Linux there, either.
    cat >"$tree/etc/python3.11/sitecustomize.py" <<-'END'
		import os
		import sys

		sys.platform = "android"
		_uname = os.uname
		os.uname = lambda: os.uname_result(("Android", *_uname()[1:]))
	END
    cat >"$tree/usr/local/bin/pkg" <<-END
		#!/bin/sh
		echo "\$*" >>$FILES/pkg.log
		[ "\$1 \$2" = "install -y" ] || exit 2
		shift 2
		for name; do
		    case \$name in
		    python | python-ensurepip-wheels) ;;
		    python-numpy | python-onnxruntime) echo $FILES/packages >/usr/local/lib/python3.11/dist-packages/pkg.pth ;;
		    *) echo "E: Unable to locate package \$name" >&2; exit 100 ;;
		    esac
		done
	END
    chmod +x "$tree/usr/local/bin/pkg"
    mkdir -p "$tree/usr/local/lib/python3.11/dist-packages"
    chown -R 10123:10123 "$tree/data" "$tree/usr/local/lib/python3.11"
}

# --- serve ---

serve() {
    cd "$1"
    [ -d pi ] && [ -d termux ] || fail "nothing is built in $1: $0 build $1"
    exec unshare --mount --pid --fork --kill-child "$script" inside "$@"
}

# The first process of the computer: sets it up and becomes its sshd.
inside() {
    local kind=$2 port=$3 key=$4 tree=$PWD/disk/root lower=pi cpu="cortex-a76" part=0xd0b name value
    local features="fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"
    if [ "$kind" = termux ]; then
        lower=termux:pi cpu="max,sve=off" part=0xd47
        features+=" i8mm bf16"
    fi
    [ -e "$BINFMT/status" ] || mount -t binfmt_misc binfmt_misc "$BINFMT" || fail "binfmt_misc cannot be mounted here"
    [ -e "$BINFMT/qemu-$QEMU" ] || cat "/usr/lib/binfmt.d/qemu-$QEMU.conf" >"$BINFMT/register" ||
        fail "QEMU cannot be registered in binfmt_misc here"
    mount -t tmpfs tmpfs disk || fail "nothing can be mounted here"
    mkdir disk/{upper,work,root}
    mount -t overlay -o "lowerdir=$lower,upperdir=disk/upper,workdir=disk/work" overlay disk/root ||
        fail "no overlay can be mounted here"
    mount -t proc proc "$tree/proc"
    mount --rbind /dev "$tree/dev"
    for ((core = 0; core < $(nproc); core++)); do
        printf 'processor\t: %d\nBogoMIPS\t: 108.00\nFeatures\t: %s\n' "$core" "$features"
        printf 'CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x4\nCPU part\t: %s\n' "$part"
        printf 'CPU revision\t: 1\n\n'
    done >disk/cpuinfo
    mount --bind disk/cpuinfo "$tree/proc/cpuinfo"
    if [ "$kind" = termux ]; then
        install -m 000 /dev/null disk/unreadable
        mount --bind disk/unreadable "$tree/proc/stat"
        chmod 000 "$tree/sys"
    else # of /sys, that of this machine is not Arm's, only what onnxruntime cannot do without
        mkdir -p "$tree/sys/devices/system/cpu"
        echo "0-$(($(nproc) - 1))" | tee "$tree"/sys/devices/system/cpu/{possible,present} >/dev/null
    fi

    local environment="QEMU_CPU=$cpu"
    [ "$kind" = termux ] && environment+=" PREFIX=$FILES/usr PATH=$FILES/usr/local/bin:$FILES/usr/bin"
    cp -L /etc/resolv.conf /etc/hosts "$tree/etc/"
    mkdir -p "$tree/etc/ssl/certs"
    cp -L /etc/ssl/certs/ca-certificates.crt "$tree/etc/ssl/certs/"
    pip_settings >"$tree/etc/pip.conf"
    install -m 644 "$key" "$tree/etc/ssh/authorized_keys"
    ssh-keygen -q -t ed25519 -N '' -f "$tree/etc/ssh/host"
    cat >"$tree/etc/ssh/sshd_config" <<-END
		ListenAddress 127.0.0.1
		Port $port
		HostKey /etc/ssh/host
		AuthorizedKeysFile /etc/ssh/authorized_keys
		PasswordAuthentication no
		StrictModes no
		UsePAM no
		PidFile none
		SetEnv $environment
	END
    QEMU_CPU=$cpu exec chroot "$tree" /usr/sbin/sshd -D -e
}

# pip.conf of a computer that reaches what pip reaches here, but for indexes in folders.
pip_settings() {
    echo '[global]'
    echo 'cert = /etc/ssl/certs/ca-certificates.crt'
    "$PYTHON" -m pip config list | awk -F "='" '
        { key = $1; sub(/.*\./, "", key); sub(/\047$/, "", $2); gsub(/\\n/, " ", $2); count = split($2, words, " ") }
        key !~ /^(index-url|extra-index-url|trusted-host|proxy|timeout|default-timeout|retries)$/ { next }
        {
            kept = ""
            for (i = 1; i <= count; i++) if (key !~ /index-url$/ || words[i] ~ /^https?:/) kept = kept " " words[i]
            if (kept) settings[key] = kept
        }
        END { for (key in settings) print key " =" settings[key] }'
}

script=$(realpath "$0")
PYTHON=${PYTHON:-python3}
case "${1:-} $#" in
"build 2")
    require
    build "$2"
    ;;
"serve 5")
    require
    serve "$(realpath "$2")" "$3" "$4" "$(realpath "$5")"
    ;;
"inside 5")
    inside "${@:2}"
    ;;
*)
    sed -n '3,/^set/{/^set/d;s/^# \?//p}' "$script" >&2
    exit 2
    ;;
esac

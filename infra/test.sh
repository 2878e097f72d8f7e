#!/usr/bin/env bash
# Checks what infra/ holds: test.sh [--strict] [chart|compose|metrics|nats|restore|runbook|upgrade …]. Without names: all.
# A check whose tools are missing is skipped and named at the end; with --strict it fails.
set -euo pipefail
cd "$(dirname "$0")/.."

all=(chart compose metrics nats restore runbook upgrade)
strict=
names=()
for word in "$@"; do
    case $word in
    --strict) strict=yes ;;
    *)
        [[ " ${all[*]} " == *" $word "* ]] || { echo "test.sh: no check name=$word; known: ${all[*]}" >&2; exit 2; }
        names+=("$word")
        ;;
    esac
done
((${#names[@]})) || names=("${all[@]}")

python=target/checks/bin/python
if [[ ! -x $python ]]; then
    echo "infra: SKIPPED, all checks: no target/checks; run infra/dev/checks.sh" >&2
    [[ -z $strict ]]
    exit
fi

mkdir -p target/infra-tests
failed=()
skipped=
for name in "${names[@]}"; do
    folder=infra/tests
    [[ $name != chart ]] || folder=infra/chart/tests
    log=target/infra-tests/$name.log
    start=$SECONDS
    if "$python" -m unittest discover --verbose --start-directory $folder --pattern "test_$name.py" >"$log" 2>&1; then
        printf 'infra: %-8s %s (%s s)\n' "$name" "$(tail -n 1 "$log")" $((SECONDS - start))
    else
        failed+=("$name")
        cat "$log"
    fi
    skipped+=$(sed -n "s/.*skipped ['\"]\(.*\)['\"]\$/\1/p" "$log" | sort -u | sed "s/^/infra: SKIPPED in $name: /")
    skipped=${skipped:+${skipped%$'\n'}$'\n'}
done

printf '%s' "$skipped" >&2
if ((${#failed[@]})); then
    echo "infra: failed: ${failed[*]}" >&2
    exit 1
fi
[[ -z $strict || -z $skipped ]]

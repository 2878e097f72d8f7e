# Reports each minute how full the data volume is: CloudWatch cannot see that from outside. A part
# of the user data.
install_disk_report() {
  local root=${MILLRACE_ROOT:-}
  local units=$root/etc/systemd/system
  [[ -d $root/run/systemd/system ]] || return 0
  install -d -m 0755 "$units"
  install -d -m 0755 "$opt/bin"
  {
    printf '#!/bin/bash\nset -euo pipefail\n'
    declare -f metadata field aws_request
    cat <<'REPORT'
imds=${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}
imds=${imds%/}
region=$AWS_REGION
place=$(findmnt --noheadings --first-only --output TARGET --source "$(readlink -f "$MILLRACE_DATA_DEVICE")")
used=$(df --output=pcent "$place" | tr -dc '0-9')
aws_request monitoring -o /dev/null "${AWS_ENDPOINT_URL:-https://monitoring.$region.amazonaws.com}/" \
  -d Action=PutMetricData -d Version=2010-08-01 -d Namespace=Millrace \
  -d MetricData.member.1.MetricName=DataVolumeUsed -d MetricData.member.1.Unit=Percent \
  -d "MetricData.member.1.Value=$used" \
  -d MetricData.member.1.Dimensions.member.1.Name=Fleet \
  -d "MetricData.member.1.Dimensions.member.1.Value=$MILLRACE_FLEET" \
  -d MetricData.member.1.Dimensions.member.2.Name=Node \
  -d "MetricData.member.1.Dimensions.member.2.Value=$MILLRACE_NODE"
REPORT
  } >"$opt/bin/disk-report"
  chmod 0755 "$opt/bin/disk-report"
  cat >"$units/millrace-disk-report.service" <<UNIT
[Unit]
Description=Reports how full the data volume is

[Service]
Type=oneshot
EnvironmentFile=$etc/instance.env
ExecStart=$opt/bin/disk-report
UNIT
  cat >"$units/millrace-disk-report.timer" <<'UNIT'
[Unit]
Description=Reports each minute how full the data volume is

[Timer]
OnCalendar=minutely

[Install]
WantedBy=timers.target
UNIT
  systemctl daemon-reload
  systemctl enable --now millrace-disk-report.timer
}
install_disk_report

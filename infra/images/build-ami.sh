#!/usr/bin/env bash
# Makes a machine image that has everything but a role: starts an instance of a plain Debian or Ubuntu image, has it
# run `install.sh --image-only` of a release, and makes an image of it. Needs the aws command, and a profile with which
# the instance may fetch the release.
#
#     build-ami.sh --image ami-… --type c6i.xlarge --subnet subnet-… --profile NAME --bucket BUCKET --release SHA256
set -euo pipefail

image='' type=c6i.xlarge subnet='' profile='' bucket='' release='' patience=1800
usage() {
    sed -n '6s/^# *//p' "$0" >&2
    exit 2
}
while (($#)); do
    case $1 in
    --image | --type | --subnet | --profile | --bucket | --release | --patience)
        [[ -n ${2:-} ]] || usage
        printf -v "${1#--}" '%s' "$2"
        shift 2
        ;;
    *) usage ;;
    esac
done
for name in image subnet profile bucket release; do
    [[ -n ${!name} ]] || { echo "build-ami: --$name is missing" >&2; usage; }
done
if [[ ! $release =~ ^[0-9a-f]{64}$ ]]; then
    echo "build-ami: --release $release is no sha256; \`millrace release\` prints it" >&2
    exit 2
fi

region=$(aws configure get region || true)
region=${AWS_REGION:-$region}
[[ -n $region ]] || { echo "build-ami: no region; set AWS_REGION" >&2; exit 2; }

# The instance stops itself when it is done; if it fails, it stays up, and this script says so.
script=$(mktemp)
trap 'rm -f "$script"' EXIT
cat >"$script" <<EOS
#!/bin/bash
set -euo pipefail
imds=http://169.254.169.254
token=\$(curl -fsS -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' \$imds/latest/api/token)
ask() { curl -fsS -H "X-aws-ec2-metadata-token: \$token" "\$imds/latest/meta-data/iam/security-credentials/\$1"; }
keys=\$(ask "\$(ask '')")
field() { sed -n 's/.*"'"\$1"'" *: *"\([^"]*\)".*/\1/p' <<<"\$keys"; }
work=\$(mktemp -d)
curl -fsS --config - --aws-sigv4 aws:amz:$region:s3 -o \$work/release.tar.gz \\
    https://s3.$region.amazonaws.com/$bucket/releases/$release.tar.gz <<C
user = "\$(field AccessKeyId):\$(field SecretAccessKey)"
header = "x-amz-security-token: \$(field Token)"
header = "x-amz-content-sha256: UNSIGNED-PAYLOAD"
C
sha256sum --check --status <<<"$release  \$work/release.tar.gz"
tar -xzf \$work/release.tar.gz -C \$work --no-same-owner
\$work/install.sh --image-only
rm -rf \$work
# An instance of the image is another machine, and runs its own user data.
cloud-init clean --logs --machine-id
shutdown -h now
EOS

# Under another name than the image has, it would be a second disk beside a small root.
disk=$(aws ec2 describe-images --region "$region" --image-ids "$image" --query 'Images[0].RootDeviceName' --output text)
if [[ $disk != /dev/* ]]; then
    echo "build-ami: --image $image has no root device in $region (it says $disk); give an ami-… of this region" >&2
    exit 2
fi
echo "build-ami: starting an instance of $image" >&2
id=$(aws ec2 run-instances --region "$region" --image-id "$image" --instance-type "$type" --subnet-id "$subnet" \
    --iam-instance-profile "Name=$profile" --user-data "file://$script" --instance-initiated-shutdown-behavior stop \
    --metadata-options HttpTokens=required,HttpPutResponseHopLimit=1 \
    --block-device-mappings "DeviceName=$disk,Ebs={VolumeSize=40,VolumeType=gp3,Encrypted=true}" \
    --tag-specifications "ResourceType=instance,Tags=[{Key=Name,Value=millrace-image}]" \
    --query 'Instances[0].InstanceId' --output text)
trap 'rm -f "$script"; aws ec2 terminate-instances --region "$region" --instance-ids "$id" >/dev/null' EXIT

give_up=$((SECONDS + patience))
until [[ $(aws ec2 describe-instances --region "$region" --instance-ids "$id" \
    --query 'Reservations[0].Instances[0].State.Name' --output text) == stopped ]]; do
    if ((SECONDS > give_up)); then
        echo "build-ami: $id is not done after $patience s; see /var/log/cloud-init-output.log on it" >&2
        exit 1
    fi
    sleep 10
done
made=$(aws ec2 create-image --region "$region" --instance-id "$id" \
    --name "millrace-${release:0:12}-$(date -u +%Y%m%d%H%M)" --description "Millrace, release $release" --query ImageId --output text)
echo "build-ami: waiting for $made" >&2
aws ec2 wait image-available --region "$region" --image-ids "$made"
echo "$made"

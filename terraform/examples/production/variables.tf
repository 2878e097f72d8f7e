variable "name" {
  description = "Name of the fleet."
  type        = string
  default     = "millrace"
}

variable "region" {
  description = "Where it is."
  type        = string
  default     = "us-east-1"
}

variable "auth" {
  description = "Folder of `millrace init-auth`."
  type        = string
  default     = "auth"
}

variable "release" {
  description = "Bundle of `millrace release`: a file, or the sha256 of one that is in the bucket."
  type        = string
}

variable "cidr" {
  description = "Addresses of the VPC; those of the nats-servers follow from them."
  type        = string
  default     = "10.64.0.0/16"
}

variable "image_id" {
  description = "Image of the instances: ami-…, or resolve:ssm:PARAMETER."
  type        = string
  default     = "resolve:ssm:/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
}

variable "gpu_image_id" {
  description = "Image of instances with GPUs: it has the driver."
  type        = string
  default     = "resolve:ssm:/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
}

variable "bucket" {
  description = "Name of the bucket."
  type        = string
}

variable "kms_key_arn" {
  description = "KMS key that encrypts the bucket, or null for S3's own."
  type        = string
  default     = null
}

variable "client_cidrs" {
  description = "Networks from which people and programs reach the nats-servers: a VPN, a peered VPC."
  type        = set(string)
  default     = []
}

variable "monitoring_cidrs" {
  description = "Networks from which Prometheus reads metrics: infra/prometheus/aws.yml."
  type        = set(string)
  default     = []
}

variable "train_zone" {
  description = "Index of the zone of the gang: that of its capacity reservation."
  type        = number
  default     = 0
}

variable "capacity_reservation_id" {
  description = "Capacity reservation for the gang, or null."
  type        = string
  default     = null
}

variable "email" {
  description = "Who hears of alarms."
  type        = string
  default     = null
}

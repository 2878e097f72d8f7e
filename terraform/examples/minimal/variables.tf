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

variable "snapshots" {
  description = "Snapshots of the nats-servers' data; null for none."
  type        = object({ hours = optional(number, 6), keep = optional(number, 12) })
  default     = {}
}

variable "force_destroy" {
  description = "Whether `terraform destroy` removes the bucket with all weights in it."
  type        = bool
  default     = false
}

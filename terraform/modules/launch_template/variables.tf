variable "name" {
  description = "Name of the template and of its instances."
  type        = string
}

variable "image_id" {
  description = "Image: ami-…, or resolve:ssm:PARAMETER, which is looked up at each launch."
  type        = string

  validation {
    condition     = can(regex("^(ami-[0-9a-f]+|resolve:ssm:/?[A-Za-z0-9_./-]+)$", var.image_id))
    error_message = "image_id=${var.image_id}: give ami-… or resolve:ssm:PARAMETER."
  }
}

variable "instance_type" {
  description = "Type of the instances; the group may override it."
  type        = string
}

variable "profile" {
  description = "Name of the instance profile."
  type        = string
}

variable "user_data" {
  description = "Script of the first start."
  type        = string
}

variable "security_group_ids" {
  description = "Security groups of the instances."
  type        = list(string)
}

variable "disk_gib" {
  description = "Size of the root disk; it is always encrypted."
  type        = number
  default     = 64

  validation {
    condition     = var.disk_gib >= 16
    error_message = "disk_gib=${var.disk_gib}: libtorch and the system alone take 12 GiB; give 16 or more."
  }
}

variable "root_device" {
  description = "Name of the image's root device: /dev/sda1 for Ubuntu, /dev/xvda for Debian."
  type        = string
  default     = "/dev/sda1"
}

variable "http_tokens" {
  description = "IMDSv2 is required: with version 1, anything that makes an instance fetch a URL reads its credentials."
  type        = string
  default     = "required"

  validation {
    condition     = var.http_tokens == "required"
    error_message = "http_tokens=${var.http_tokens}: Millrace speaks IMDSv2 only; leave it at required."
  }
}

variable "efa" {
  description = "Number of EFA interfaces; 0 for an ordinary interface."
  type        = number
  default     = 0

  validation {
    condition     = var.efa >= 0 && var.efa <= 32 && floor(var.efa) == var.efa
    error_message = "efa=${var.efa}: give a whole number from 0 to 32; `aws ec2 describe-instance-types` says how many a type has."
  }
}

variable "placement_group" {
  description = "Placement group, or null."
  type        = string
  default     = null
}

variable "capacity_reservation_id" {
  description = "Capacity reservation that the instances use, or null."
  type        = string
  default     = null
}

variable "tags" {
  description = "Tags of instances and disks."
  type        = map(string)
  default     = {}
}

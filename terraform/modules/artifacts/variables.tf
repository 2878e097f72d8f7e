variable "name" {
  description = "Name of the fleet."
  type        = string
}

variable "bucket" {
  description = "Name of the bucket; all of AWS share one space of names. Null: the fleet's name and a suffix that AWS makes unique."
  type        = string
  default     = null

  validation {
    condition     = var.bucket == null ? true : can(regex("^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$", var.bucket))
    error_message = "bucket=${coalesce(var.bucket, "null")}: give 3 to 63 characters of a-z, 0-9 and -, no - at an end. A name with dots fails TLS."
  }

  validation {
    condition = var.bucket == null ? true : !anytrue([
      startswith(var.bucket, "xn--"), startswith(var.bucket, "sthree-"), startswith(var.bucket, "amzn-s3-demo-"),
      endswith(var.bucket, "-s3alias"), endswith(var.bucket, "--ol-s3"), endswith(var.bucket, "--x-s3"),
    ])
    error_message = "bucket=${coalesce(var.bucket, "null")} begins or ends with what AWS keeps for itself; choose another name."
  }
}

variable "public" {
  description = "Weights, rollouts and releases are never public. The variable exists to say so."
  type        = bool
  default     = false

  validation {
    condition     = !var.public
    error_message = "public=true: this bucket holds models and data of your runs; copy what is to be public to another bucket."
  }
}

variable "force_destroy" {
  description = "Whether `terraform destroy` removes the bucket with all weights in it. False: it refuses while there are objects."
  type        = bool
  default     = false
}

variable "keep_overwritten_days" {
  description = "Days for which an object that was overwritten or removed can be fetched back."
  type        = number
  default     = 7

  validation {
    condition     = var.keep_overwritten_days >= 1 && floor(var.keep_overwritten_days) == var.keep_overwritten_days
    error_message = "keep_overwritten_days=${var.keep_overwritten_days}: give a whole number from 1."
  }
}

variable "release" {
  description = "The bundle of `millrace release`: a file on this machine, which is uploaded, or the sha256 of one that is in the bucket."
  type        = string

  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.release)) || fileexists(var.release)
    error_message = "release=${var.release} is neither a file nor a sha256 of 64 lower-case hex digits; make one with `millrace release --out dist`."
  }
}

variable "kms_key_arn" {
  description = "KMS key that encrypts the bucket. Null: S3's own key (SSE-S3)."
  type        = string
  default     = null
}

variable "fleet" {
  description = "What all instances of a fleet share: its name, its image, outputs of network and artifacts, folder of `millrace init-auth`."
  type = object({
    name     = string
    auth     = string
    image_id = string
    network = object({
      region          = string
      vpc_id          = string
      subnet_ids      = list(string)
      member_group_id = string
      subnet_cidrs    = list(string)
      zones           = list(string)
    })
    artifacts = object({
      arn         = string
      bucket      = string
      prefix      = string
      location    = string
      release     = string
      kms_key_arn = optional(string)
    })
    root_device = optional(string, "/dev/sda1")
  })

  validation {
    condition     = fileexists("${var.fleet.auth}/tls/ca.pem") && fileexists("${var.fleet.auth}/nats-server.conf")
    error_message = "fleet.auth=${var.fleet.auth} is no folder of `millrace init-auth --dir`; make it first."
  }
}

variable "instance_type" {
  description = "Type of the three nodes."
  type        = string
  default     = "m6i.large"
}

variable "data_gib" {
  description = "Size of each node's data volume. The log alone may take 64 GiB (infra/nats, Bounds)."
  type        = number
  default     = 100

  validation {
    condition     = var.data_gib >= 10 && floor(var.data_gib) == var.data_gib
    error_message = "data_gib=${var.data_gib}: give a whole number from 10; 100 has room for the log's bound."
  }
}

variable "snapshots" {
  description = "Snapshots of the data volumes: one every so many hours, of which so many are kept. Null: none."
  type        = object({ hours = optional(number, 6), keep = optional(number, 12) })
  default     = {}

  validation {
    condition = var.snapshots == null ? true : (
      contains([1, 2, 3, 4, 6, 8, 12, 24], var.snapshots.hours) && var.snapshots.keep >= 1 && var.snapshots.keep <= 1000
    )
    error_message = "snapshots: hours is one of 1, 2, 3, 4, 6, 8, 12, 24; keep is 1 to 1000."
  }
}

variable "client_cidrs" {
  description = "Addresses beside the fleet's own instances that reach the servers: a VPN, a peered network."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for cidr in var.client_cidrs : can(cidrnetmask(cidr))])
    error_message = "client_cidrs=${join(",", var.client_cidrs)}: write IPv4 ranges as 10.0.0.0/16."
  }

  validation {
    condition     = alltrue([for cidr in var.client_cidrs : try(tonumber(split("/", cidr)[1]) >= 8, true)])
    error_message = "client_cidrs=${join(",", var.client_cidrs)}: that is everyone; the servers have no public address, name your own networks."
  }
}

variable "session_manager" {
  description = "Whether Session Manager reaches the nodes."
  type        = bool
  default     = false
}

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

variable "nats_url" {
  description = "Output `url` of the module nats."
  type        = string

  validation {
    condition     = can(regex("^tls://[^/,]+:[0-9]+(,tls://[^/,]+:[0-9]+)*$", var.nats_url))
    error_message = "nats_url=${var.nats_url}: write tls://ADDRESS:4222, several with commas between them; nobody is let in without TLS."
  }
}

variable "name" {
  description = "Name of the pool."
  type        = string
  default     = "train"
}

variable "size" {
  description = "Most members of the gang: workers, as many as a run's gang.ranks. Between runs it has none."
  type        = number

  validation {
    condition     = var.size >= 1 && var.size <= 2048 && floor(var.size) == var.size
    error_message = "size=${var.size}: give a whole number from 1; the table of members holds 2048."
  }
}

variable "min" {
  description = "Fewest members, also between runs."
  type        = number
  default     = 0
}

variable "workers_per_machine" {
  description = "Members on an instance: as many as its type has GPUs. Null: one for each GPU, and the autoscaler takes it for one; set it on types with several GPUs."
  type        = number
  default     = null

  validation {
    condition = var.workers_per_machine == null ? true : (var.workers_per_machine >= 1
    && var.workers_per_machine <= 64 && floor(var.workers_per_machine) == var.workers_per_machine)
    error_message = "workers_per_machine=${coalesce(var.workers_per_machine, -1)}: give a whole number from 1 to 64, or null."
  }
}

variable "instance_type" {
  description = "Type of the members: all of one, since a step waits for the slowest."
  type        = string
}

variable "image_id" {
  description = "Image: it has the GPU's driver, and with efa the driver of EFA."
  type        = string
  default     = null
}

variable "zone" {
  description = "Index of the zone; all members are in one."
  type        = number
  default     = 0
}

variable "efa" {
  description = "EFA interfaces of a member, as many as its type has network cards; 0 for ordinary ones."
  type        = number
  default     = 0
}

variable "capacity_reservation_id" {
  description = "Capacity reservation for the members, or null."
  type        = string
  default     = null

  validation {
    condition     = var.capacity_reservation_id == null ? true : can(regex("^cr-[0-9a-f]+$", var.capacity_reservation_id))
    error_message = "capacity_reservation_id=${coalesce(var.capacity_reservation_id, "null")}: write cr-…, or null."
  }

  validation {
    condition     = var.capacity_reservation_id == null || !var.spot
    error_message = "capacity_reservation_id with spot=true: reserved capacity is on demand; set spot = false."
  }
}

variable "spot" {
  description = "Whether members are spot. A member that leaves makes its step void."
  type        = bool
  default     = false
}

variable "grace_s" {
  description = "Seconds that a member has to finish its step."
  type        = number
  default     = 240
}

variable "heartbeat_s" {
  description = "Seconds for which the hook waits without a heartbeat. A change replaces the group, whose instances drain and end."
  type        = number
  default     = 600
}

variable "cooldown_s" {
  description = "The autoscaler shrinks the gang to the most that it needed within so many seconds."
  type        = number
  default     = 300
}

variable "cost" {
  description = "Price of an instance-hour beside the other pools', for the autoscaler."
  type        = number
  default     = 10
}

variable "settings" {
  description = "Further lines of instance.env: variables of `millrace-worker`."
  type        = map(string)
  default     = {}
}

variable "disk_gib" {
  description = "Size of the root disk."
  type        = number
  default     = 512
}

variable "session_manager" {
  description = "Whether Session Manager reaches the members."
  type        = bool
  default     = false
}

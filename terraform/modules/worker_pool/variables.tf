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

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,23}$", var.name))
    error_message = "name=${var.name}: give 1 to 24 characters of a-z, 0-9 and -, the first a letter."
  }
}

variable "stages" {
  description = "Stages that its workers serve; with `:64` at most 64 tasks of each are in flight. One user of `millrace init-auth` has the rights of all."
  type        = list(string)

  validation {
    condition = length(var.stages) > 0 && alltrue([
      for stage in var.stages : can(regex("^(generate|env_step|reward|train_shard|publish_weights)(:[1-9][0-9]*)?$", stage))
    ])
    error_message = "stages=${join(",", var.stages)}: choose of generate, env_step, reward, train_shard, publish_weights."
  }

  validation {
    condition = fileexists(format("%s/keys/%s.nk", var.fleet.auth, join("-", [
      for stage in var.stages : split(":", stage)[0]
    ])))
    error_message = "stages=${join(",", var.stages)}: ${var.fleet.auth}/keys has no key for them; run `millrace init-auth` with --combine ${join(",", [for stage in var.stages : split(":", stage)[0]])}."
  }
}

variable "instance_types" {
  description = "Types that will do, the preferred first. Spot pools find capacity sooner with several."
  type        = list(string)

  validation {
    condition     = length(var.instance_types) > 0 && alltrue([for type in var.instance_types : can(regex("^[a-z0-9-]+\\.[a-z0-9-]+$", type))])
    error_message = "instance_types=${join(",", var.instance_types)}: name at least one type, as g6.xlarge."
  }
}

variable "image_id" {
  description = "Image of this pool. Null: the fleet's."
  type        = string
  default     = null
}

variable "min" {
  description = "Fewest instances, also between runs."
  type        = number
  default     = 0

  validation {
    condition     = var.min >= 0 && floor(var.min) == var.min && var.min <= var.max
    error_message = "min=${var.min}, max=${var.max}: give whole numbers with 0 <= min <= max."
  }
}

variable "max" {
  description = "Most instances."
  type        = number

  validation {
    condition     = var.max >= 1 && floor(var.max) == var.max
    error_message = "max=${var.max}: give a whole number from 1; a pool that may have nothing is no pool."
  }
}

variable "desired" {
  description = "Instances at the first apply; later the autoscaler decides. Null: min."
  type        = number
  default     = null

  validation {
    condition     = var.desired == null ? true : var.desired >= var.min && var.desired <= var.max
    error_message = "desired=${coalesce(var.desired, -1)} is not between min=${var.min} and max=${var.max}; raise max or lower desired."
  }
}

variable "step" {
  description = "Instances that the autoscaler starts or ends at once, at most."
  type        = number
  default     = 4

  validation {
    condition     = var.step >= 1 && floor(var.step) == var.step
    error_message = "step=${var.step}: give a whole number from 1."
  }
}

variable "workers_per_machine" {
  description = "Workers that an instance runs: as many as it has GPUs. Null: one for each GPU, and the autoscaler takes it for one; set it on types with several GPUs."
  type        = number
  default     = null

  validation {
    condition = var.workers_per_machine == null ? true : (var.workers_per_machine >= 1
    && var.workers_per_machine <= 64 && floor(var.workers_per_machine) == var.workers_per_machine)
    error_message = "workers_per_machine=${coalesce(var.workers_per_machine, -1)}: give a whole number from 1 to 64, or null."
  }
}

variable "cooldown_s" {
  description = "The autoscaler shrinks the pool to the most that it needed within so many seconds."
  type        = number
  default     = 60

  validation {
    condition     = var.cooldown_s >= 0 && floor(var.cooldown_s) == var.cooldown_s
    error_message = "cooldown_s=${var.cooldown_s}: give a whole number from 0."
  }
}

variable "start_up_s" {
  description = "Seconds from a decision until a new worker serves, until the autoscaler has measured it. Null: 240."
  type        = number
  default     = null

  validation {
    condition     = var.start_up_s == null ? true : var.start_up_s > 0
    error_message = "start_up_s=${coalesce(var.start_up_s, -1)}: give a number above 0, or null."
  }
}

variable "cost" {
  description = "Price of an instance-hour beside the other pools', for the autoscaler."
  type        = number
  default     = 1

  validation {
    condition     = var.cost > 0
    error_message = "cost=${var.cost}: give a number above 0."
  }
}

variable "spot" {
  description = "Whether instances are spot: a fraction of the price, ended with two minutes' notice."
  type        = bool
  default     = true
}

variable "on_demand_base" {
  description = "Instances of a spot pool that are on demand all the same: the first so many."
  type        = number
  default     = 0

  validation {
    condition     = var.on_demand_base >= 0 && var.on_demand_base <= var.max
    error_message = "on_demand_base=${var.on_demand_base} is not between 0 and max=${var.max}."
  }
}

variable "grace_s" {
  description = "Seconds that a worker has to finish its tasks when it must leave; the rest returns to the queue."
  type        = number
  default     = 90

  validation {
    condition     = var.grace_s >= 1 && floor(var.grace_s) == var.grace_s && var.grace_s < var.hook.heartbeat_s
    error_message = "grace_s=${var.grace_s} is not between 1 and hook.heartbeat_s=${var.hook.heartbeat_s}: the hook would time out during the drain; shorten the grace or raise heartbeat_s."
  }

  validation {
    condition     = !var.spot || var.grace_s <= 110
    error_message = "grace_s=${var.grace_s}: a spot notice comes 120 s ahead; give 110 or less, or spot = false."
  }
}

variable "hook" {
  description = "The hook that lets an instance drain: its name, and the seconds for which it waits without a heartbeat. A change replaces the group, whose instances drain and end."
  type        = object({ name = optional(string, "drain"), heartbeat_s = optional(number, 300) })
  default     = {}
  nullable    = false

  validation {
    condition     = can(regex("^[A-Za-z0-9_/-]{1,255}$", var.hook.name))
    error_message = "hook.name=${coalesce(var.hook.name, "null")}: a group without a hook ends its instances undrained; leave the name out for \"drain\"."
  }

  validation {
    condition     = var.hook.heartbeat_s >= 30 && var.hook.heartbeat_s <= 7200
    error_message = "hook.heartbeat_s=${var.hook.heartbeat_s}: EC2 Auto Scaling takes 30 to 7200."
  }
}

variable "settings" {
  description = "Further lines of instance.env: variables of `millrace-worker`."
  type        = map(string)
  default     = {}
}

variable "disk_gib" {
  description = "Size of the root disk. Weights are cached there."
  type        = number
  default     = 128
}

variable "zone" {
  description = "Index of the one zone that the pool is in; null for all three."
  type        = number
  default     = null

  validation {
    condition     = var.zone == null ? true : contains([0, 1, 2], var.zone)
    error_message = "zone=${coalesce(var.zone, -1)}: give 0, 1, 2 or null."
  }
}

variable "security_group_ids" {
  description = "Further security groups."
  type        = list(string)
  default     = []
}

variable "http_tokens" {
  description = "IMDSv2 is required; see launch_template."
  type        = string
  default     = "required"

  validation {
    condition     = var.http_tokens == "required"
    error_message = "http_tokens=${var.http_tokens}: Millrace speaks IMDSv2 only; leave it at required."
  }
}

variable "efa" {
  description = "EFA interfaces of an instance; see train_gang."
  type        = number
  default     = 0
}

variable "placement_group" {
  description = "Placement group, or null; see train_gang."
  type        = string
  default     = null
}

variable "capacity_reservation_id" {
  description = "Capacity reservation, or null; see train_gang."
  type        = string
  default     = null
}

variable "session_manager" {
  description = "Whether Session Manager reaches the instances."
  type        = bool
  default     = false
}

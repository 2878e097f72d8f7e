variable "name" {
  description = "Name of the fleet."
  type        = string
}

variable "groups" {
  description = "Auto-scaling groups of the pools, by the pools' names."
  type        = map(string)
}

variable "coordinator_group" {
  description = "Auto-scaling group of the coordinators."
  type        = string
}

variable "nats_instance_ids" {
  description = "The nats-servers, in the order of their numbers."
  type        = list(string)
}

variable "topic_arn" {
  description = "SNS topic that hears of alarms. Null: a topic is made if email is given."
  type        = string
  default     = null
}

variable "email" {
  description = "Address that is asked to subscribe to the topic."
  type        = string
  default     = null

  validation {
    condition     = var.email == null ? true : can(regex("^[^@ ]+@[^@ ]+$", var.email))
    error_message = "email=${coalesce(var.email, "null")} is no address; write name@example.com."
  }

  validation {
    condition     = var.email == null || var.topic_arn == null
    error_message = "email and topic_arn are both given; subscribe the address to your own topic, or leave topic_arn out."
  }
}

variable "disk_percent" {
  description = "Fill of a nats-server's data volume that raises the alarm."
  type        = number
  default     = 75

  validation {
    condition     = var.disk_percent >= 1 && var.disk_percent <= 99
    error_message = "disk_percent=${var.disk_percent}: give 1 to 99."
  }
}

variable "missing_minutes" {
  description = "Minutes for which a pool may lack instances that were asked for: the time to start, and shortage of spot."
  type        = number
  default     = 15

  validation {
    condition     = var.missing_minutes >= 5 && floor(var.missing_minutes) == var.missing_minutes
    error_message = "missing_minutes=${var.missing_minutes}: give a whole number from 5; an instance needs minutes to start."
  }
}

variable "draining_minutes" {
  description = "Minutes for which instances of a pool may be leaving without a pause."
  type        = number
  default     = 30

  validation {
    condition     = var.draining_minutes >= 5 && floor(var.draining_minutes) == var.draining_minutes
    error_message = "draining_minutes=${var.draining_minutes}: give a whole number from 5."
  }
}

variable "flow_logs" {
  description = "Log group for rejected connections in the VPC: its id and the days to keep. Null: none."
  type        = object({ vpc_id = string, days = optional(number, 30) })
  default     = null
}

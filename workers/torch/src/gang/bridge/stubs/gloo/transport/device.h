// Declarations for c10d's headers; see README.md in this folder's root.
#pragma once

namespace gloo::transport {

class Device;

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};

} // namespace gloo::transport

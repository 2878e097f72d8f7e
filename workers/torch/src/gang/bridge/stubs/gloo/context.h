// Declarations for c10d's headers; see README.md in this folder's root.
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  std::chrono::milliseconds getTimeout() const;
  void setTimeout(std::chrono::milliseconds timeout);
  void closeConnections();
};

} // namespace gloo

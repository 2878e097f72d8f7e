// Rust's rendezvous as a c10d store.
#pragma once

#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "rust/cxx.h"

namespace millrace::gang {

struct RendezvousKeys;

class RendezvousStore final : public c10d::Store {
 public:
  RendezvousStore(rust::Box<RendezvousKeys> keys, std::chrono::milliseconds timeout);
  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

 private:
  rust::Box<RendezvousKeys> keys_;
};

} // namespace millrace::gang

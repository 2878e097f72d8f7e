#include "millrace-torch/src/gang/bridge/store.h"

#include "millrace-torch/src/gang/bridge.rs.h"

namespace millrace::gang {

namespace {

rust::Str word(const std::string& key) {
  return rust::Str(key.data(), key.size());
}

[[noreturn]] void unsupported(const char* call) {
  throw std::logic_error(std::string("c10d asks the rendezvous for ") + call + ", which it does not have");
}

} // namespace

RendezvousStore::RendezvousStore(rust::Box<RendezvousKeys> keys, std::chrono::milliseconds timeout)
    : Store(timeout), keys_(std::move(keys)) {}

c10::intrusive_ptr<c10d::Store> RendezvousStore::clone() {
  return c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(this);
}

void RendezvousStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  keys_->set(word(key), rust::Slice<const std::uint8_t>(value.data(), value.size()));
}

std::vector<std::uint8_t> RendezvousStore::get(const std::string& key) {
  auto value = keys_->wait(word(key), static_cast<std::uint64_t>(timeout_.count()));
  return {value.begin(), value.end()};
}

bool RendezvousStore::check(const std::vector<std::string>& keys) {
  for (const auto& key : keys) {
    if (!keys_->has(word(key))) {
      return false;
    }
  }
  return true;
}

void RendezvousStore::wait(const std::vector<std::string>& keys) {
  wait(keys, timeout_);
}

// c10d passes its own five minutes here; a formation that exceeds the assignment's time fails.
void RendezvousStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  const auto most = static_cast<std::uint64_t>(std::min(timeout, timeout_).count());
  for (const auto& key : keys) {
    keys_->wait(word(key), most);
  }
}

std::int64_t RendezvousStore::add(const std::string&, std::int64_t) {
  unsupported("add");
}

bool RendezvousStore::deleteKey(const std::string&) {
  unsupported("deleteKey");
}

std::int64_t RendezvousStore::getNumKeys() {
  unsupported("getNumKeys");
}

} // namespace millrace::gang

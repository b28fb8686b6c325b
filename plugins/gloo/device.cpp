// SPDX-License-Identifier: Apache-2.0
#include "device.hpp"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>

#include "backplane/sdk/sdk.hpp"

namespace backplane::gloo {
namespace {

using ::gloo::transport::tcp::Device;
using ::gloo::transport::tcp::Loop;

// An explicit instantiation may name private members: gloo gives no other way to its epoll descriptor.
template <typename Tag, auto Member>
struct Reveal {
  friend constexpr auto reveal(Tag) { return Member; }
};
struct LoopOfDevice {
  friend constexpr auto reveal(LoopOfDevice);
};
struct DescriptorOfLoop {
  friend constexpr auto reveal(DescriptorOfLoop);
};
template struct Reveal<LoopOfDevice, &Device::loop_>;
template struct Reveal<DescriptorOfLoop, &Loop::fd_>;

// When gloo's loop cannot start its thread it leaves its descriptor behind: so somebody else finds out before.
void require_thread() {
  try {
    std::thread([] {}).join();
  } catch (const std::system_error& e) {
    throw sdk::Failure(BP_RESOURCE, "gloo: this process can start no more threads; raise its limit of threads", -1,
                       e.code().value());
  }
}

}  // namespace

bool is_out_of_descriptors(const std::string& text) {
  return text.find(std::strerror(EMFILE)) != std::string::npos || text.find(std::strerror(ENFILE)) != std::string::npos;
}

std::shared_ptr<Device> make_device(const ::gloo::transport::tcp::attr& attr) {
  require_thread();
  auto device = std::make_shared<Device>(attr);
  fcntl(epoll_descriptor(*device), F_SETFD, FD_CLOEXEC);
  return device;
}

int epoll_descriptor(const Device& device) {
  const Loop& loop = *(device.*reveal(LoopOfDevice()));
  return loop.*reveal(DescriptorOfLoop());
}

}  // namespace backplane::gloo

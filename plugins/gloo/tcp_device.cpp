// SPDX-License-Identifier: Apache-2.0
#include "tcp_device.hpp"

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

// Explicit instantiation may name private members: the only access to gloo's epoll descriptor.
template <typename Tag, auto Member>
struct ExposeMember {
  friend constexpr auto member_of(Tag) { return Member; }
};
struct LoopOfDevice {
  friend constexpr auto member_of(LoopOfDevice);
};
struct DescriptorOfLoop {
  friend constexpr auto member_of(DescriptorOfLoop);
};
template struct ExposeMember<LoopOfDevice, &Device::loop_>;
template struct ExposeMember<DescriptorOfLoop, &Loop::fd_>;

// gloo leaks its epoll descriptor if it cannot start its thread, so a thread is tried first.
void require_thread() {
  try {
    std::thread([] {}).join();
  } catch (const std::system_error& e) {
    throw sdk::Failure(BP_RESOURCE, "gloo: cannot start a thread; raise this process's limit (ulimit -u)", -1,
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
  const Loop& loop = *(device.*member_of(LoopOfDevice()));
  return loop.*member_of(DescriptorOfLoop());
}

}  // namespace backplane::gloo

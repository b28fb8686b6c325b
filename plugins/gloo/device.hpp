// SPDX-License-Identifier: Apache-2.0
//
// gloo's TCP device, mended: its epoll descriptor is close-on-exec, and a machine that has run out of threads or
// descriptors is an error of its own.
#pragma once

#include <gloo/transport/tcp/device.h>

#include <memory>
#include <string>

namespace backplane::gloo {

// Starts gloo's thread; call it with signals blocked. Throws Failure(BP_RESOURCE) if there is no thread or descriptor
// left, what gloo throws for an address that it cannot listen on.
std::shared_ptr<::gloo::transport::tcp::Device> make_device(const ::gloo::transport::tcp::attr& attr);

// gloo's epoll descriptor. What waits there for something calls a Pair on gloo's thread.
int epoll_descriptor(const ::gloo::transport::tcp::Device& device);

// Whether gloo's text tells of descriptors that have run out; it has no other way to say so.
bool is_out_of_descriptors(const std::string& text);

}  // namespace backplane::gloo

// SPDX-License-Identifier: Apache-2.0
//
// gloo's TCP device with a close-on-exec epoll descriptor, and distinct errors for exhausted threads and descriptors.
#pragma once

#include <gloo/transport/tcp/device.h>

#include <memory>
#include <string>

namespace backplane::gloo {

// Starts gloo's thread; call with signals blocked. Throws Failure(BP_RESOURCE) if threads or descriptors are exhausted,
// and gloo's exception for an address that it cannot listen on.
std::shared_ptr<::gloo::transport::tcp::Device> make_device(const ::gloo::transport::tcp::attr& attr);

// gloo's epoll descriptor. Handlers registered there run on gloo's thread.
int epoll_descriptor(const ::gloo::transport::tcp::Device& device);

// Whether an error text of gloo reports exhausted descriptors. gloo gives no code.
bool is_out_of_descriptors(const std::string& text);

}  // namespace backplane::gloo

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace backplane::zmq {

// How many bytes have arrived over a TCP connection, read or not. 0 if the kernel does not tell.
uint64_t received_bytes(int descriptor);

}  // namespace backplane::zmq

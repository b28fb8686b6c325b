// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <new>

#include "error.hpp"

namespace backplane::core::rpc {

// The exception of the catch block that calls it, as an error that can be sent to a peer.
inline Error current_error() {
  try {
    throw;
  } catch (const Error& e) {
    return e;
  } catch (const std::bad_alloc&) {
    return Error(BP_RESOURCE, "out of memory");
  } catch (const std::exception& e) {
    return Error(BP_INTERNAL, e.what());
  } catch (...) {
    return Error(BP_INTERNAL, "an exception of unknown type");
  }
}

}  // namespace backplane::core::rpc

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <new>

#include "error.hpp"

namespace backplane::core::rpc {

// In a catch block: what was thrown, as an error that can be told to a peer.
inline Error caught() {
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

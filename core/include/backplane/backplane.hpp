// SPDX-License-Identifier: Apache-2.0
//
// The C++ API: inline headers over the C API. This header includes process groups, stores and the registry of backends.
// Headers to include by themselves:
//
//   rpc.hpp                       calls of functions on other ranks; requires msgpack-cxx
//   gradients.hpp                 reduction of gradients in packs
//   launch.hpp                    a function on several ranks of this machine
//   adapters/dlpack.hpp           DLPack tensors as buffers; requires dlpack
//   adapters/memory_resource.hpp  memory of a group for containers of the standard library
//   adapters/objects.hpp          typed objects over a group; requires msgpack-cxx
//   compat/                       names that one earlier library had, in namespace backplane::compat: hf.hpp,
//                                 master_worker.hpp, megengine.hpp, multigpu.hpp, streams.hpp
//
// detail/ holds parts of these headers. Do not include it by name.
#pragma once

#include "backplane/distributed.hpp"
#include "backplane/error.hpp"
#include "backplane/process_group.hpp"
#include "backplane/registry.hpp"
#include "backplane/store.hpp"
#include "backplane/types.hpp"

// SPDX-License-Identifier: Apache-2.0
//
// Device arrays as arguments, results and referenced values over tensorpipe, and the errors of agents without support.
#include "rpc/devices.hpp"

#include <array>
#include <future>
#include <mutex>
#include <numeric>
#include <thread>

#include "rpc/workers.hpp"

namespace backplane::test {
namespace {

using Ints = std::vector<int>;
using DeviceInts = rpc::DeviceArray<int>;
constexpr int kOutOfMemory = 2;
constexpr int kIllegalAddress = 700;

Ints counting(size_t size) {
  Ints values(size);
  std::iota(values.begin(), values.end(), 7);
  return values;
}

void register_functions() {
  static const bool once [[maybe_unused]] = [] {
    rpc::register_function("device echo", [](const DeviceInts& array) { return array; });
    rpc::register_function("device of", [](const DeviceInts& array) { return array.device().ordinal; });
    rpc::register_function("count", [](const DeviceInts& array) { return array.size(); });
    rpc::register_function("sum on host",
                           [](const rpc::Array<int>& array) { return std::accumulate(array.begin(), array.end(), 0); });
    rpc::register_function("double it", [](const DeviceInts& array) {
      Ints values = on_host(array);
      for (int& each : values) each *= 2;
      return on_device(values, array.device().ordinal);
    });
    rpc::register_function("make", [](size_t size, int device) { return on_device(counting(size), device); });
    rpc::register_function("mixed", [](const rpc::Array<int>& first, const DeviceInts& second, const std::string& text,
                                       const Ints& third, const DeviceInts& fourth) {
      Ints all(first.begin(), first.end());
      for (const DeviceInts& array : {second, fourth}) {
        const Ints values = on_host(array);
        all.insert(all.end(), values.begin(), values.end());
      }
      all.insert(all.end(), third.begin(), third.end());
      all.push_back(static_cast<int>(text.size()));
      return all;
    });
    return true;
  }();
}

class RpcDevicesTest : public testing::Test {
 protected:
  void SetUp() override {
    register_functions();
    const OnDevice first(0);  // retains the contexts
    for (int device = 0; device < 2; ++device) contexts_[static_cast<size_t>(device)] = cuda_double_contexts(device);
  }
  void TearDown() override {
    cuda_double_fail("", 0, 0, 0);
    for (int device = 0; device < 2; ++device) {
      EXPECT_EQ(cuda_double_blocks(device), 0U) << "device " << device << " has unused memory";
      EXPECT_EQ(cuda_double_contexts(device), contexts_[static_cast<size_t>(device)]) << device;
    }
    EXPECT_EQ(cuda_double_violations(), 0);
  }

  // Starts workers a, which runs `body`, and b, with these device maps.
  // `transports` "uv": without express connections.
  static void with_maps(const std::string& of_a, const std::string& of_b,
                        const std::function<void(const rpc::Worker&)>& body, const std::string& transports = "") {
    const Store store = Store::inproc();
    on_ranks(2, [&](int rank) {
      rpc::RpcOptions options = rpc_options("tensorpipe", store, rank, 2);
      options.backend.clear();
      options.options =
          construct_rpc_backend_options(backend_type("tensorpipe"), std::chrono::seconds(60), "env://",
                                        {{"device_maps", rank == 0 ? of_a : of_b}, {"transports", transports}});
      const rpc::Worker worker = rpc::Worker::join(rank == 0 ? "a" : "b", options);
      try {
        if (rank == 0) body(worker);
      } catch (const std::exception& e) {
        ADD_FAILURE() << e.what();
      }
      EXPECT_EQ(worker.shutdown(true, std::chrono::seconds(240)), std::vector<std::string>());
    });
  }

 private:
  std::array<int, 2> contexts_ = {};
};

TEST_F(RpcDevicesTest, ArgumentsFollowTheMapAndResultsItsReverse) {
  with_maps("b:0=1,1=0", "", [](const rpc::Worker& worker) {
    for (const int device : {0, 1}) {
      EXPECT_EQ(worker.rpc_sync<int>("b", "device of", on_device(counting(5), device)), 1 - device);
      const auto back = worker.rpc_sync<DeviceInts>("b", "double it", on_device(counting(5), device));
      EXPECT_EQ(back.device(), Device::cuda(device));
      EXPECT_EQ(on_host(back), (Ints{14, 16, 18, 20, 22}));
    }
  });
}

TEST_F(RpcDevicesTest, OwnMapTakesPrecedenceOverTheReverse) {
  with_maps("b:0=0", "a:1=1", [](const rpc::Worker& worker) {
    EXPECT_EQ(worker.rpc_sync<int>("b", "device of", on_device(counting(1), 0)), 0);
    EXPECT_EQ(worker.rpc_sync<int>("b", "device of", on_device(counting(1), 1)), 1);  // by the reverse of b's map
    EXPECT_EQ(worker.rpc_sync<DeviceInts>("b", "make", size_t{3}, 1).device().ordinal, 1);
  });
}

TEST_F(RpcDevicesTest, TransfersArraysOfAllSizes) {
  with_maps("b:0=1", "", [](const rpc::Worker& worker) {
    for (const size_t size : {0, 1, 3, 255, 8191, 8192, 100000, 3 << 20}) {
      const auto back = worker.rpc_sync<DeviceInts>("b", "device echo", on_device(counting(size), 0));
      EXPECT_EQ(back.device().ordinal, 0);
      EXPECT_TRUE(on_host(back) == counting(size)) << size;
      EXPECT_EQ(worker.rpc_sync<size_t>("b", "count", on_device(counting(size), 0)), size);
    }
  });
}

TEST_F(RpcDevicesTest, MixesHostAndDeviceArrays) {
  with_maps("b:0=1,1=0", "", [](const rpc::Worker& worker) {
    for (const size_t size : {1, 20000}) {
      Ints want;
      for (int i = 0; i < 4; ++i) {
        const Ints part = counting(size);
        want.insert(want.end(), part.begin(), part.end());
      }
      want.push_back(2000);
      EXPECT_TRUE(worker.rpc_sync<Ints>("b", "mixed", rpc::Array<int>(counting(size)), on_device(counting(size), 0),
                                        std::string(2000, 'x'), counting(size), on_device(counting(size), 1)) == want);
    }
  });
}

TEST_F(RpcDevicesTest, ReferencedValuesStayOnTheirDevice) {
  with_maps("b:0=1", "", [](const rpc::Worker& worker) {
    auto there = worker.remote<DeviceInts>("b", "make", size_t{1000}, 1);
    worker.rpc_sync<size_t>("b", "count", on_device(counting(1), 0));
    for (int i = 0; i < 2; ++i) {
      const DeviceInts here = there.to_here();
      EXPECT_EQ(here.device().ordinal, 0);
      EXPECT_TRUE(on_host(here) == counting(1000));
    }
    EXPECT_EQ(there.to_here().buffer().device(), Device::cuda(0));
    const auto mine = worker.make_rref(on_device(counting(2), 0));
    EXPECT_EQ(mine.local_value().size(), 2U);
  });
}

TEST_F(RpcDevicesTest, RejectsUnmappedDevices) {
  with_maps("b:0=1", "", [](const rpc::Worker& worker) {
    std::string text;
    const DeviceInts other = on_device(counting(5), 1);
    EXPECT_EQ(failure_of([&] { worker.rpc_sync<size_t>("b", "count", other); }, &text), Status::kInvalid);
    EXPECT_NE(text.find("CUDA device 1 of this worker ('a') is not mapped for worker 'b'; add it to device_maps"),
              std::string::npos)
        << text;
    // In the other direction the reverse map contains device 1 only.
    EXPECT_EQ(failure_of([&] { worker.rpc_sync<DeviceInts>("b", "make", size_t{5}, 0); }, &text), Status::kInvalid);
    EXPECT_NE(text.find("CUDA device 0 of this worker ('b') is not mapped for worker 'a'"), std::string::npos) << text;
    const auto kept = worker.remote<DeviceInts>("b", "make", size_t{5}, 0);
    text.clear();
    EXPECT_EQ(failure_of([&] { kept.to_here(); }, &text), Status::kInvalid);
    EXPECT_NE(text.find("CUDA device 0 of this worker ('b') is not mapped for worker 'a'"), std::string::npos) << text;
    EXPECT_EQ(worker.rpc_sync<DeviceInts>("b", "make", size_t{5}, 1).size(), 5U);  // calls still work
  });
  with_maps("", "", [](const rpc::Worker& worker) {
    std::string text;
    const auto call = [&] { worker.rpc_sync<size_t>("b", "count", on_device(counting(0), 0)); };
    EXPECT_EQ(failure_of(call, &text), Status::kInvalid);
    EXPECT_NE(text.find("CUDA device 0 of this worker ('a') is not mapped for worker 'b'"), std::string::npos) << text;
  });
}

TEST_F(RpcDevicesTest, RejectsPointersOutsideTheDevice) {
  with_maps("b:0=1", "", [](const rpc::Worker& worker) {
    std::string text;
    Ints host = counting(5);
    EXPECT_EQ(failure_of([&] { worker.rpc_sync<size_t>("b", "count", DeviceInts(host.data(), 5, 0)); }, &text),
              Status::kInvalid);
    EXPECT_NE(text.find("not in the memory of CUDA device 0, as it is said to be (CUDA_ERROR_INVALID_VALUE)"),
              std::string::npos)
        << text;
    const DeviceInts other = on_device(counting(5), 1);
    EXPECT_EQ(failure_of([&] { worker.rpc_sync<size_t>("b", "count", DeviceInts(other.data(), 5, 0)); }, &text),
              Status::kInvalid);
    EXPECT_NE(text.find("not in the memory of CUDA device 0, as it is said to be, but of device 1"), std::string::npos)
        << text;
  });
}

// A function must not access an array of another kind than it expects.
TEST_F(RpcDevicesTest, RejectsArraysOfTheWrongKind) {
  with_maps("b:0=1", "", [](const rpc::Worker& worker) {
    std::string text;
    EXPECT_EQ(failure_of([&] { worker.rpc_sync<int>("b", "sum on host", on_device(counting(5), 0)); }, &text),
              Status::kInvalid);
    EXPECT_NE(text.find("argument 1 of 'sum on host' must be "), std::string::npos) << text;
    EXPECT_NE(text.find(": an array of a device was sent; 'sum on host' takes ("), std::string::npos) << text;
    EXPECT_EQ(failure_of([&] { worker.rpc_sync<size_t>("b", "count", rpc::Array<int>(counting(5))); }, &text),
              Status::kInvalid);
    EXPECT_NE(text.find(": an array in host memory was sent; 'count' takes ("), std::string::npos) << text;
    EXPECT_EQ(failure_of([&] { worker.rpc_sync<Ints>("b", "make", size_t{5}, 1); }, &text), Status::kInvalid);
    EXPECT_EQ(text.find("the result of 'make' on worker 'b' (rank 1) must be "), 0U) << text;
    EXPECT_NE(text.find(": an array of a device was sent; "), std::string::npos) << text;
  });
}

// A failing driver call on either side fails the RPC call, and later calls succeed.
TEST_F(RpcDevicesTest, DriverErrorsFailOneCall) {
  struct Case {
    const char* function;
    int device;
    int result;
    int after;
    Status status;
    const char* text;
  };
  const std::array<Case, 7> cases = {{
      {"cuMemcpyDtoH_v2", 0, kIllegalAddress, 0, Status::kInternal,
       "'device echo' on worker 'b' (rank 1) failed: CUDA device 0 could not copy a buffer to the host: "
       "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {"cuMemAlloc_v2", 1, kOutOfMemory, 0, Status::kResource,
       "'device echo' on worker 'b' (rank 1) failed: CUDA device 1 has no memory for a buffer of 20000 bytes: "
       "CUDA_ERROR_OUT_OF_MEMORY; free some there"},
      {"cuMemcpyHtoDAsync_v2", 1, kIllegalAddress, 0, Status::kInternal, "could not copy a buffer from the host"},
      {"cuStreamSynchronize", 1, kIllegalAddress, 0, Status::kInternal, "could not copy a buffer from the host"},
      {"cuMemcpyDtoH_v2", 1, kIllegalAddress, 0, Status::kPeerLost,
       "the reply was lost: CUDA device 1 could not copy a buffer to the host"},
      {"cuMemAlloc_v2", 0, kOutOfMemory, 0, Status::kResource,
       "'device echo' on worker 'b' (rank 1) failed: the result could not be received: CUDA device 0 has no memory for "
       "a "
       "buffer of 20000 bytes"},
      {"cuStreamSynchronize", 0, kIllegalAddress, 0, Status::kInternal,
       "the result could not be received: CUDA device 0"},
  }};
  with_maps("b:0=1", "", [&cases](const rpc::Worker& worker) {
    const DeviceInts array = on_device(counting(5000), 0);
    worker.rpc_sync<DeviceInts>("b", "device echo", array);
    for (const Case& each : cases) {
      cuda_double_fail(each.function, each.device, each.result, each.after);
      std::string text;
      EXPECT_EQ(failure_of([&] { worker.rpc_sync<DeviceInts>("b", "device echo", array); }, &text), each.status);
      EXPECT_NE(text.find(each.text), std::string::npos) << each.function << ": " << text;
      cuda_double_fail("", 0, 0, 0);
      EXPECT_TRUE(on_host(worker.rpc_sync<DeviceInts>("b", "device echo", array)) == counting(5000));
    }
  });
}

TEST_F(RpcDevicesTest, NamesADeviceWithoutAContext) {
  for (const char* function : {"cuDevicePrimaryCtxRetain", "cuStreamCreate"}) {
    with_maps("b:0=1", "", [function](const rpc::Worker& worker) {
      cuda_double_fail(function, 0, kOutOfMemory, 0);
      std::string text;
      const DeviceInts array = on_device(counting(5), 0);
      EXPECT_EQ(failure_of([&] { worker.rpc_sync<DeviceInts>("b", "device echo", array); }, &text), Status::kResource);
      EXPECT_NE(text.find("CUDA device 0 could not "), std::string::npos) << text;
      cuda_double_fail("", 0, 0, 0);
      EXPECT_EQ(worker.rpc_sync<DeviceInts>("b", "device echo", array).size(), 5U);
    });
  }
}

// A message that is being copied delays later messages to the same worker, not those to others.
TEST_F(RpcDevicesTest, KeepsTheOrderDuringCopies) {
  static std::mutex mutex;
  static Ints order;
  [[maybe_unused]] static const bool registered = [] {
    rpc::register_inline_function("note", [](int number) {
      const std::lock_guard lock(mutex);
      order.push_back(number);
    });
    rpc::register_inline_function("note array", [](int number, const DeviceInts&) {
      const std::lock_guard lock(mutex);
      order.push_back(number);
    });
    return true;
  }();
  with_maps(
      "b:0=1", "",
      [](const rpc::Worker& worker) {
        std::vector<rpc::Future<void>> calls;
        calls.push_back(worker.rpc_async<void>("b", "note", 0));
        cuda_double_hold(1);
        calls.push_back(worker.rpc_async<void>("b", "note array", 1, on_device(counting(100000), 0)));
        EXPECT_EQ(cuda_double_holds_one(), 1);
        for (int i = 2; i < 20; ++i) {
          calls.push_back(i % 3 == 0 ? worker.rpc_async<void>("b", "note array", i, on_device(counting(10), 0))
                                     : worker.rpc_async<void>("b", "note", i));
        }
        cuda_double_hold(0);
        for (const auto& call : calls) call.wait();
        Ints want(20);
        std::iota(want.begin(), want.end(), 0);
        EXPECT_EQ(order, want);
      },
      "uv");
}

TEST_F(RpcDevicesTest, ShutdownDuringACopyFreesMemory) {
  const Store store = Store::inproc();
  on_ranks(2, [&store](int rank) {
    const rpc::Worker worker = rpc::Worker::join(
        worker_name(rank), rpc_options("tensorpipe", store, rank, 2, "?device_maps=" + worker_name(1 - rank) + ":0=1"));
    if (rank == 1) {
      worker.all_gather(0);
      EXPECT_TRUE(worker.shutdown(false).empty());
      return;
    }
    cuda_double_hold(1);
    const auto call = worker.rpc_async<DeviceInts>(1, "device echo", on_device(counting(100000), 0));
    const auto behind = worker.rpc_async<DeviceInts>(1, "device echo", on_device(counting(10), 0));
    EXPECT_EQ(cuda_double_holds_one(), 1);
    worker.all_gather(0);
    std::thread leaving([&worker] { worker.shutdown(false); });
    EXPECT_NE(failure_of([&call] { call.wait(); }), Status::kInternal);
    EXPECT_NE(failure_of([&behind] { behind.wait(); }), Status::kInternal);
    cuda_double_hold(0);
    leaving.join();
  });
}

// The receiver leaves while a message or a reply to it is being copied.
TEST_F(RpcDevicesTest, ReleasesMessagesToAWorkerThatLeft) {
  const Store store = Store::inproc();
  on_ranks(2, [&store](int rank) {
    const rpc::Worker worker = rpc::Worker::join(
        worker_name(rank), rpc_options("tensorpipe", store, rank, 2, "?device_maps=" + worker_name(1 - rank) + ":0=1"));
    if (rank == 0) {
      cuda_double_hold(1);
      const auto call = worker.rpc_async<DeviceInts>(1, "device echo", on_device(counting(100000), 0));
      EXPECT_EQ(cuda_double_holds_one(), 1);
      worker.all_gather(0);
      EXPECT_EQ(failure_of([&call] { call.wait(); }), Status::kCancelled);  // worker 1 has left
      cuda_double_hold(0);
    } else {
      worker.all_gather(0);
    }
    EXPECT_TRUE(worker.shutdown(false).empty());
  });
}

TEST_F(RpcDevicesTest, ReceivedArraysOutliveTheWorker) {
  DeviceInts held;
  with_maps("b:0=1", "",
            [&held](const rpc::Worker& worker) { held = worker.rpc_sync<DeviceInts>("b", "make", size_t{1000}, 1); });
  EXPECT_TRUE(on_host(held) == counting(1000));  // after the end of the worker
  EXPECT_EQ(cuda_double_bytes(0), 4000U);
  EXPECT_EQ(cuda_double_blocks(1), 0U);
  held = {};
}

TEST_F(RpcDevicesTest, MapsWithoutADriverAreRejected) {
  ASSERT_EQ(setenv("BACKPLANE_DOUBLE_CUDA_DEVICES", "0", 1), 0);
  std::array<std::string, 2> texts;
  const Store store = Store::inproc();
  on_ranks(2, [&](int rank) {
    const auto options = rpc_options("tensorpipe", store, rank, 2, rank == 0 ? "?device_maps=worker1:0=1" : "");
    EXPECT_EQ(failure_of([&] { rpc::Worker::join(worker_name(rank), options); }, &texts[static_cast<size_t>(rank)]),
              Status::kInvalid);
  });
  EXPECT_NE(texts[0].find("worker worker0 maps its device 0, but has 0"), std::string::npos) << texts[0];
  EXPECT_NE((texts[0] + texts[1]).find("CUDA_ERROR_NO_DEVICE"), std::string::npos) << texts[0] << texts[1];
  in_world("tensorpipe", 2, [](const rpc::Worker& worker) {  // host arrays need no driver
    EXPECT_EQ(worker.rpc_sync<int>(1 - worker.rank(), "sum on host", rpc::Array<int>(counting(3))), 24);
  });
  EXPECT_EQ(unsetenv("BACKPLANE_DOUBLE_CUDA_DEVICES"), 0);
}

TEST_F(RpcDevicesTest, OtherAgentsRecommendTensorPipe) {
  for (const std::string& transport : rpc_transports()) {
    if (transport == "tensorpipe") continue;
    in_world(transport, 2, [&transport](const rpc::Worker& worker) {
      std::string text;
      const DeviceInts array = on_device(counting(5), 0);
      EXPECT_EQ(failure_of([&] { worker.rpc_sync<size_t>(1 - worker.rank(), "count", array); }, &text),
                Status::kUnsupported);
      EXPECT_NE(text.find("carries host memory only; choose tensorpipe, with device_maps, for arrays of devices"),
                std::string::npos)
          << transport << ": " << text;
      EXPECT_EQ(failure_of([&] { worker.rpc_sync<size_t>(worker.rank(), "count", array); }, &text),
                Status::kUnsupported);
      EXPECT_NE(text.find("a worker's calls of its own functions carry host memory only"), std::string::npos) << text;
    });
  }
}

}  // namespace
}  // namespace backplane::test

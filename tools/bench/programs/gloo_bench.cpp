// SPDX-License-Identifier: Apache-2.0
//
// all_reduce through the plugin gloo against the same algorithm of gloo called directly, on the same two processes.
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <vector>

#include "backplane/backplane.hpp"
#include "programs/comparison.hpp"
#include "programs/two_ranks.hpp"

namespace backplane::bench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAddress = "127.0.0.1";

// gloo as in its documentation.
class BareGloo {
 public:
  BareGloo(int rank, const fs::path& directory) {
    gloo::transport::tcp::attr attr;
    attr.hostname = kAddress;
    auto device = gloo::transport::tcp::CreateDevice(attr);
    fs::create_directories(directory);
    gloo::rendezvous::FileStore store(directory.string());
    const auto context = std::make_shared<gloo::rendezvous::Context>(rank, 2);
    context->connectFullMesh(store, device);
    context_ = context;
  }

  void all_reduce(std::vector<float>& data, gloo::AllreduceOptions::Algorithm algorithm) {
    gloo::AllreduceOptions options(context_);
    options.setOutput(data.data(), data.size());
    options.setAlgorithm(algorithm);
    options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
    options.setTag(tag_++);
    gloo::allreduce(options);
  }

 private:
  std::shared_ptr<gloo::Context> context_;
  uint32_t tag_ = 0;
};

ProcessGroup make_group(int rank, const Store& store, const std::string& algorithm, const std::string& more) {
  GroupOptions options;
  options.backend =
      std::string("gloo?address=") + kAddress + "&algorithm=" + algorithm + (more.empty() ? "" : "&" + more);
  options.store = store.with_prefix(algorithm);
  options.rank = rank;
  options.world_size = 2;
  return ProcessGroup::create(options);
}

// The sum must be 1 + 2.
void check(const Action& action, std::vector<float>& data, int rank, const char* who) {
  std::fill(data.begin(), data.end(), static_cast<float>(rank + 1));
  action();
  if (std::any_of(data.begin(), data.end(), [](float each) { return each != 3.0F; })) {
    throw std::runtime_error(std::string("wrong sum from ") + who);
  }
}

void body(int rank, const fs::path& directory, const Arguments& arguments) {
  using Algorithm = gloo::AllreduceOptions::Algorithm;
  BareGloo bare(rank, directory / "bare");
  const Store store = Store::file((directory / "store").string());
  std::vector<Outcome> outcomes;
  for (const Algorithm algorithm : {Algorithm::RING, Algorithm::BCUBE}) {
    const std::string name = algorithm == Algorithm::RING ? "ring" : "bcube";
    ProcessGroup group = make_group(rank, store, name, arguments.options);
    for (const Scenario& scenario : {Scenario{name, 4, 10}, Scenario{name, 64 << 10, 5}, Scenario{name, 16 << 20, 1}}) {
      std::vector<float> data(scenario.bytes / sizeof(float));
      const Action bare_call = [&bare, &data, algorithm] { bare.all_reduce(data, algorithm); };
      const Action our_call = [&group, &data] { group.all_reduce(data); };
      check(bare_call, data, rank, "gloo");
      check(our_call, data, rank, "the plugin");
      std::fill(data.begin(), data.end(), 0.0F);  // stays 0 in repeated sums
      outcomes.push_back(compare(scenario, arguments, group, bare_call, our_call));
    }
    group.barrier();  // waits for the other rank
  }
  if (rank == 0) print("gloo", outcomes, arguments.json);
}

}  // namespace
}  // namespace backplane::bench

int main(int argc, char** argv) {
  using namespace backplane::bench;  // NOLINT: main
  const Arguments arguments = parse(argc, argv);
  return on_two_ranks(arguments.pin, [&arguments](int rank, const std::filesystem::path& directory) {
    body(rank, directory, arguments);
  });
}

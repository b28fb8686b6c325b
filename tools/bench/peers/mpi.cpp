// SPDX-License-Identifier: Apache-2.0
//
// MPI as a peer. Built for each installed MPI.
#define OMPI_SKIP_MPICXX 1  // the C++ bindings that MPI has given up
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstdlib>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "measure/measure.hpp"
#include "peers/driver.hpp"

namespace {

using backplane::bench::Op;
using backplane::bench::Step;

int count_of(const Step& step) {
  if (step.count > std::numeric_limits<int>::max()) throw std::length_error("MPI's counts end at 2^31 - 1 elements");
  return static_cast<int>(step.count);
}

class MpiTarget final : public backplane::bench::Target {
 public:
  MpiTarget() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool offers(backplane::bench::Test) const override { return true; }

  // Errors end the job (MPI_ERRORS_ARE_FATAL), so statuses are not checked.
  void run(const Step& step) override {
    const int count = count_of(step);
    switch (step.op) {
      case Op::kBarrier:
        MPI_Barrier(world_);
        break;
      case Op::kBroadcast:
        MPI_Bcast(step.in, count, MPI_FLOAT, step.root, world_);
        break;
      case Op::kReduce:
        MPI_Reduce(step.in, step.out, count, MPI_FLOAT, MPI_SUM, step.root, world_);
        break;
      case Op::kAllReduce:
        MPI_Allreduce(MPI_IN_PLACE, step.in, count, MPI_FLOAT, MPI_SUM, world_);
        break;
      case Op::kGather:
        MPI_Gather(step.in, count, MPI_FLOAT, step.out, count, MPI_FLOAT, step.root, world_);
        break;
      case Op::kScatter:
        MPI_Scatter(step.in, count, MPI_FLOAT, step.out, count, MPI_FLOAT, step.root, world_);
        break;
      case Op::kAllGather:
        MPI_Allgather(step.in, count, MPI_FLOAT, step.out, count, MPI_FLOAT, world_);
        break;
      case Op::kReduceScatter:
        MPI_Reduce_scatter_block(step.in, step.out, count, MPI_FLOAT, MPI_SUM, world_);
        break;
      case Op::kAllToAll:
        MPI_Alltoall(step.in, count, MPI_FLOAT, step.out, count, MPI_FLOAT, world_);
        break;
      case Op::kSend:
        MPI_Send(step.in, count, MPI_FLOAT, step.peer, 0, world_);
        break;
      case Op::kRecv:
        MPI_Recv(step.out, count, MPI_FLOAT, step.peer, 0, world_, MPI_STATUS_IGNORE);
        break;
    }
  }

  void start(const Step& step) override {
    const int count = count_of(step);
    MPI_Request& request = requests_.emplace_back(MPI_REQUEST_NULL);
    if (step.op == Op::kSend) {
      MPI_Isend(step.in, count, MPI_FLOAT, step.peer, 0, world_, &request);
    } else if (step.op == Op::kRecv) {
      MPI_Irecv(step.out, count, MPI_FLOAT, step.peer, 0, world_, &request);
    } else if (step.op == Op::kAllReduce) {
      MPI_Iallreduce(MPI_IN_PLACE, step.in, count, MPI_FLOAT, MPI_SUM, world_, &request);
    } else {
      throw std::logic_error("this operation is not started asynchronously");
    }
  }
  void finish() override {
    MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE);
    requests_.clear();
  }

 private:
  MPI_Comm world_ = MPI_COMM_WORLD;
  int rank_ = 0;
  int size_ = 1;
  std::vector<MPI_Request> requests_;
};

}  // namespace

int main(int count, char** arguments) {
  MPI_Init(&count, &arguments);
  const int code = backplane::bench::drive(
      count, arguments, "mpi", [](const std::vector<std::string>&) { return std::make_unique<MpiTarget>(); });
  if (code != 0) MPI_Abort(MPI_COMM_WORLD, code);
  MPI_Finalize();
  return code;
}

// SPDX-License-Identifier: Apache-2.0
#include "device.hpp"

#include <algorithm>
#include <bit>
#include <new>

#include "backplane/sdk/failure.hpp"

namespace backplane::nccl {

OnDevice::OnDevice(const Api& api, int device) : api_(api) {
  check(api, api.cuda.get_device(&before_), "asking for the current device");
  if (before_ == device) return;
  check(api, api.cuda.set_device(device), "choosing the device");
  changed_ = true;
}

OnDevice::~OnDevice() {
  if (changed_) api_.cuda.set_device(before_);
}

Stream::Stream(const Api& api, int device) : api_(api), device_(device) {
  const OnDevice here(api, device);
  check(api, api.cuda.stream_create(&stream_, cudaStreamNonBlocking), "making a stream");
}

Stream::~Stream() {
  try {
    const OnDevice here(api_, device_);
    api_.cuda.stream_destroy(stream_);
  } catch (const sdk::Failure&) {
    // The device has failed; the stream no longer exists.
  }
}

bool Stream::is_still(Pool& pool, Event& last) const noexcept {
  try {
    const OnDevice here(api_, device_);
    if (!last) last = Event(pool, stream_);
    return last.passed();
  } catch (const sdk::Failure&) {
    return true;  // it does nothing any more
  } catch (const std::bad_alloc&) {
    return false;
  }
}

Pool::~Pool() {
  try {
    const OnDevice here(api_, device_);
    for (const cudaEvent_t event : idle_events_) api_.cuda.event_destroy(event);
    for (const auto& [kind, data] : idle_) {
      if (kind.first == Where::kHost) {
        api_.cuda.free_host(data);
      } else {
        api_.cuda.free(data);
      }
    }
  } catch (const sdk::Failure&) {
    // The device has failed; its memory no longer exists.
  }
}

Pool::Pieces::node_type Pool::take(Where where, uint64_t size) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = idle_.find({where, size});
    if (found != idle_.end()) return idle_.extract(found);
  }
  const OnDevice here(api_, device_);
  Pieces made;
  void*& data = made.emplace(std::pair(where, size), nullptr)->second;
  if (where == Where::kHost) {
    check(api_, api_.cuda.malloc_host(&data, size), "allocating pinned memory to stage a buffer");
  } else {
    check(api_, api_.cuda.malloc(&data, size), "allocating device memory to stage a buffer");
  }
  return made.extract(made.begin());
}

void Pool::give(Pieces::node_type piece) noexcept {
  const std::lock_guard lock(mutex_);
  idle_.insert(std::move(piece));
}

Pool::Events Pool::take_event() {
  Events taken;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_events_.empty()) {
      taken.splice(taken.begin(), idle_events_, idle_events_.begin());
      return taken;
    }
  }
  taken.push_back(nullptr);
  check(api_, api_.cuda.event_create(&taken.front(), cudaEventDisableTiming), "making an event");
  return taken;
}

void Pool::give_event(Events& event) noexcept {
  const std::lock_guard lock(mutex_);
  idle_events_.splice(idle_events_.begin(), event);
}

Event::Event(Pool& pool, cudaStream_t stream) : pool_(&pool), event_(pool.take_event()) {
  const cudaError_t result = pool.api_.cuda.event_record(get(), stream);
  if (result == cudaSuccess) return;
  pool.give_event(event_);
  check(pool.api_, result, "recording an event");
}

Event::~Event() {
  if (!event_.empty()) pool_->give_event(event_);
}

bool Event::passed() const {
  const CudaTable& cuda = pool_->api_.cuda;
  const cudaError_t result = cuda.event_query(get());
  if (result == cudaErrorNotReady) {
    cuda.get_last_error();
    return false;
  }
  check(pool_->api_, result, "waiting for the device");
  return true;
}

// Powers of two, so that pieces fit again.
Piece::Piece(Pool& pool, uint64_t bytes, Where where)
    : pool_(&pool), piece_(pool.take(where, std::bit_ceil(std::max<uint64_t>(bytes, 512)))) {}

Piece::~Piece() {
  if (piece_) pool_->give(std::move(piece_));
}

Piece& Piece::operator=(Piece&& other) noexcept {
  std::swap(pool_, other.pool_);
  piece_.swap(other.piece_);
  return *this;
}

}  // namespace backplane::nccl

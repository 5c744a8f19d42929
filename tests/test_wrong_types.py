"""Public functions that are called with values of other types: one plain line, `SettingError`."""

import asyncio
import dataclasses
import functools
import importlib

import numpy as np
import pytest
import torch

import simsgd
from simsgd.methods.algorithms.local import LocalSGD

CALLS = {
    "train(workers='4')": "workers must be a whole number, got '4'",
    "plot_results(5)": "run must be a run, a path or several, not int, got 5",
    "plot_results('runs', y=5)": "y must be text, not int, got 5",
    "plot_results('runs', x=5)": "x is not known, got 5; known: ",
    "plot_results([5])": "run must be text or a path, not int, got 5",
    "report(5)": "run must be a run, a path or several, not int, got 5",
    "report('runs', 5)": "output must be text or a path, not int, got 5",
    "plot_results('runs', xlim=5)": "xlim must be a lower and an upper limit, got 5",
    "plot_results('runs', ylim=('a', 2))": "ylim must be a lower and an upper limit, got ('a', 2)",
    "plot_results('runs', labels=5)": "labels must be a dict, not int, got 5",
    "plot_results('runs', labels={'a': 5})": "labels must be text, not int, got 5",
    "plot_results('runs', order=5)": "order must be text or a list, not int, got 5",
    "plot_results('runs', title=5)": "title must be text, not int, got 5",
    "plot_results('runs', logx='yes')": "logx must be true or false, not str, got 'yes'",
    "plot_results('runs', theme=None)": "theme must be text, not NoneType",
    "plot_results('runs', smooth='x')": "smooth must be a whole number, not str, got 'x'",
    "plot_results('runs', network=5, kind='time')": "network must be text or a list, not int,",
    "network('runs', fusion='no')": "fusion must be true or false, not str, got 'no'",
    "network('runs', network=5)": "network must be text or a list, not int, got 5",
    "plot_results('runs', output=5)": "output must be text or a path, not int, got 5",
    "bytes_of(samples='x')": "samples must be a whole number, not str, got 'x'",
    "bytes_of(input_shape=5)": "input_shape must be text, not int, got 5",
    "bytes_of(num_classes='x')": "num_classes must be a whole number, not str, got 'x'",
    "tune_consensus(stepsizes=5)": "stepsizes must be a list or ndarray, not int, got 5",
    "tune_consensus(stepsizes=[])": "stepsizes must be at least one",
    "tune_consensus(stepsizes='0.5')": "stepsizes must be a list or ndarray, not str, got '0.5'",
    "results(b'runs')": "run must be a run, a path or several, not bytes, got b'runs'",
    "results({'a': 'runs'})": "run must be a run, a path or several, not dict, got {'a': 'runs'}",
    "methods.Mixing('x', None)": "weights must be Tensor, not NoneType",
    "methods.Mixing('x', torch.ones(4, 3))": "weights must be square, [W, W], got [4, 3]",
    "methods.Sparse.of([1, 2], [0, 1], 5)": "values must be Tensor, not list, got [1, 2]",
    "methods.Dense.of([1, 2])": "values must be Tensor, not list, got [1, 2]",
    "train(lr=1e-50)": "lr is 0 in float32, got 1e-50; give at least 1.4e-45",
    "train(metric=asyncio.sleep, metric_mode='max')": "metric is async, got sleep; write def",
    "tune_consensus(stepsizes=['x'])": "stepsizes must be a number, not str, got 'x'",
    "methods.topology('erdos-renyi:0.5,x', 8)": "topology needs a whole SEED, got erdos-renyi",
    "results(None)": "run must be a run, a path or several, not NoneType",
    "network('runs', network=[])": "network must be given; such as 10gbe",
    "train(regime={0: {'lr': 0.1}})": "regime must be text, got {0: {'lr': 0.1}}; name a file that",
    "train(model_config={'depth': 8})": "model_config must be text, got {'depth': 8}; such as",
    "network(5)": "run must be a run, a path or several, not int, got 5",
    "Run(3)": "run must be text or a path, not int, got 3",
    "Run(None)": "run must be text or a path, not NoneType",
    "Sweep(3)": "folder must be text or a path, not int, got 3",
    "sweep(launcher=5, workers=[2])": "launcher must be text, not int, got 5",
    "sweep(jobs='x', workers=[2])": "jobs must be a whole number, not str, got 'x'",
    "sweep(workers=[2], model=print)": "model is an object, which the processes of a sweep "
    "cannot make again, got print; name it, as in ./mine.py, or call train for each",
    "sweep(workers=[2], dataset=[3])": "dataset is an object, which the processes of a sweep "
    "cannot make again, got int; name it, as in ./data.py, or call train for each",
    "advise([], 'sign', measure=False)": "network must be given; such as 10gbe",
    "advise('10gbe', 'sign', measure='no')": "measure must be true or false, not str, got 'no'",
    "sweep(workers=[2], quiet='x')": "quiet must be true or false, not str, got 'x'",
    "sweep(workers=[2], quiet=[True, False])": "quiet must be true or false, not list, got [True,",
    "bench('step', quick='yes')": "quick must be true or false, not str, got 'yes'",
    "bench('step', workers='x')": "workers must be a whole number, not str, got 'x'",
    "bench('step', model=[5])": "model must be text, not int, got 5",
    "verify(2, log=5, dataset='digits')": "log must be a function of a text, got 5",
    "verify(steps=np.float64(2.5))": "steps must be a whole number, not float, got 2.5",
    "sweep(workers={2, 4})": "workers is neither one value nor a list, got set; give a list of ",
    "methods.register('nosuch', 'x')": "kind is not known, got nosuch; known: aggregation, ",
    "methods.register('memory', 5)": "name must be text, not int, got 5",
    "methods.composed(5)": "compressor must be text, not int, got 5",
    "methods.composed(None)": "compressor must be text, not NoneType, got None",
    "verify(2, dataset='digits', model='mlp', workers=2, link=5)": "link must be text, not int",
    "evaluate('a', data_dir=5)": "data_dir must be text or a path, not int, got 5",
    "Sweep('nosuch')": "sweep does not exist, got nosuch",
    "plot_results('runs', labels={'a': 'x' * 301})": "labels may have 300 characters, got xxx",
    "plot_results('runs', title='x' * 301)": "title may have 300 characters, got xxx",
    "verify(steps='2')": "steps must be a whole number, not str, got '2'",
    "evaluate(5)": "checkpoint must be text or a path, not int, got 5",
    "generate(5)": "checkpoint must be text or a path, not int, got 5",
    "generate('a', length='x')": "length must be a whole number, not str, got 'x'",
    "generate('a', temperature='x')": "temperature must be a number, not str, got 'x'",
    "network('runs', compress_ms='x')": "compress_ms must be a number, not str, got 'x'",
    "network('runs', compute_ms=[])": "compute_ms must be a finite number of at least 0, got []",
    "network('runs', overlap=5)": "overlap must be none, buckets, buckets:SIZE or perfect, got 5",
    "network('runs', to=5)": "to must be NAME=VALUE, got 5; such as error=5 or val_loss=2.0",
    "results('runs', at_bytes=[])": "at_bytes must be a number of bytes greater than 0, got []",
    "advise(compress_ms=[])": "compress_ms must be a number or text or a path, not list, got []",
    "sweep(seeds=1.5, workers=[2])": "seeds must be a whole number, not float, got 1.5",
    "train(dry_run=True)": "dry_run is an option of the command line alone; simsgd.bytes_of counts",
    "train(network='10gbe')": "network is an option of the command line alone, got 10gbe; price",
    "sweep(network='10gbe', workers=[2])": "network is an option of the command line alone, got",
    "train(dataset=((torch.ones(4, 3).tolist(), [0] * 4),) * 2)": "dataset has a part of list and "
    "list, and both must be tensors",
    "train(learning_rate=0.1)": "setting is not known, got learning_rate; did you mean lr?",
    "Simulator(torch.nn.Linear(3, 2), workers=2, batch_size=3)": "batch_size is a setting of "
    "train, got 3; a Simulator gets its batches in step",
    "Simulator(torch.nn.Linear(3, 2), workers=2, epochs=3)": "epochs is a setting of train, got",
    "Simulator(torch.nn.Linear(3, 2), regime={0: {'learning_rate': 0.1}})": "regime sets "
    "something that is not known, got learning_rate; did you mean lr?",
    "bytes_of(lr=0.1)": "lr has no effect on the bytes of a step, got 0.1; leave it out",
    "bytes_of(dataset='digits')": "dataset has no effect on the bytes of a step, got digits;",
    "bytes_of(memory='residual', compressor='topk:0.1')": "memory has no effect on the bytes",
    "bytes_of(algorithm='fedavg', client_buffers='average')": "client_buffers cannot be counted "
    "from shapes alone: they do not show which buffers a model has, got average; ",
    "advise('10gbe', 'sign', prune=0.9)": "prune has no effect on advice, got 0.9; leave it out",
    "advise('10gbe', 'sign', epochs=3)": "epochs has no effect on advice, got 3; leave it out",
    "verify(2, eval_every=1)": "eval_every has no effect on a comparison of steps, got 1; ",
    "verify(2, tensorboard=True)": "tensorboard has no effect on a comparison of steps; leave",
    "train(compressor=['topk:0.1'])": "compressor is a list of 1, and one is needed; sweep takes",
    "Simulator(torch.nn.Linear(3, 2), memory=('ef21',))": "memory is a tuple of 1, and one is",
    "Simulator(torch.nn.Linear(3, 2), algorithm='dpsgd', topology=torch.eye(2))": "topology must "
    "be text, got tensor([[1., 0.], [0., 1.]])",
    "Simulator(torch.nn.Linear(3, 2), regime={0: {'lr': '0.1'}})": "lr must be a number, not "
    "text, got '0.1'",
    "Simulator(torch.nn.Linear(3, 2), regime={0: {'lr': True}})": "lr must be a number, not true",
    "Simulator(torch.nn.Linear(3, 2), regime=[{'epoch': '0', 'lr': 0.1}])": "regime must have a "
    "number of at least 0 as epoch, got '0'",
    "Simulator(torch.nn.Linear(3, 2), regime={0: {'lr': 0.1, 'dampening': '0'}})": "dampening "
    "must be a number, not text, got '0'",
    "Simulator(torch.nn.Linear(3, 2), regime={0: {'lr': 0.1, 'foreach': 'no'}})": "foreach must",
    "Simulator(torch.nn.Linear(3, 2), regime={0: {'lr': 0.1, 'differentiable': True}})": "differ"
    "entiable has no place here, where no step is differentiated; leave it out",
    "Simulator(torch.jit.ScriptModule(), workers=2, lr=0.1)": "model is compiled by torch.jit",
    "Config(until_bytes=1.5)": "until_bytes must be text or a whole number, got 1.5",
    "advise(5)": "network must be text, not int, got 5",
    "advise([5])": "network must be text, not int, got 5",
    "tune_consensus(seed='4')": "seed must be a whole number, not str, got '4'",
    "tune_consensus(workers='4')": "workers must be a whole number, not str, got '4'",
    "tune_consensus(topology=5)": "topology must be text, not int, got 5",
    "tune_consensus(compressor=5)": "compressor must be text, not int, got 5",
    "list_names(5)": "kind must be text, not int, got 5",
    "list_names(['models'])": "kind must be text, not list, got ['models']",
    "list_names('topologies', '4')": "workers must be a whole number, not str, got '4'",
    "bench(None)": "bench must be text, not NoneType",
    "bench('step', 5)": "plot must be text or a path, not int, got 5",
    "Simulator(5, workers=2, lr=0.1)": "model must be a torch.nn.Module, not int, got 5",
    "count('x', 10)": "fraction must be a number, not str, got 'x'",
    "count(0.5, 'x')": "n must be a whole number, not str, got 'x'",
    "count([1], 10)": "fraction must be a number, not list, got [1]",
    "count(float('nan'), 10)": "fraction must lie in [0, 1], got nan",
    "count(2.0, 10)": "fraction must lie in [0, 1], got 2.0",
    "count(0.5, -3)": "n must be at least 0, got -3",
    "Config(nosuch=1)": "setting is not known, got nosuch; did you mean epochs?",
    "Config('x')": "setting must be given by name, got x; write workers=4",
    "Config.of(5)": "settings must be a dict, not int, got 5",
    "Config(method='nosuch')": "method is not known, got nosuch; did you mean noloco?",
    "methods.topology('ring', '8')": "workers must be a whole number, not str, got '8'",
    "methods.topology(5, 8)": "topology must be text, not int, got 5",
    "advise('10gbe', 5, workers=4)": "compressor must be text or list or tuple, not int, got 5",
    "ddp.register(print, 'topk:0.1', 'none')": "parallel must be DistributedDataParallel, not",
    "ddp.register(print, nosuch=3)": "setting is not known, got nosuch; known: compress_if, index",
    "ddp.register(print, seed=True)": "seed must be a whole number, not bool, got True",
    "ddp.register(print, compress_if=5)": "compress_if must be text, not int, got 5",
    "ddp.register(print, seed=-1)": "seed must lie in [0, 2**63), got -1",
    "recording('loops/z', print).__enter__()": "simulator must be Simulator, not builtin",
    "Simulator(torch.nn.Linear(3, 2, device='meta'), lr=0.1)": "model has parameters without "
    "numbers, weight on the device meta; make it without torch.device('meta')",
    "Simulator(torch.nn.Linear(3, 2, dtype=torch.complex64), lr=0.1)": "model has complex "
    "parameters, weight; use real ones, two for each",
    "Simulator(torch.nn.ParameterList([torch.nested.nested_tensor([torch.ones(2)], layout=torch."
    "jagged)]), lr=0.1)": "model has parameters of another form, 0 is nested; give",
    "Simulator(torch.nn.ParameterList([torch.eye(2).to_sparse()]), lr=0.1)": "model has parameters "
    "of another form, 0 is torch.sparse_coo; give dense tensors",
    "Simulator(torch.nn.DataParallel(torch.nn.Linear(3, 2)), workers=2, lr=0.1)": "model is "
    "wrapped in DataParallel; give what is in it, its .module",
    "Recipe(nosuch=1)": "setting is not known, got nosuch; nearest of",
    "Recipe(workers=True)": "workers must be a whole number, got True",
    "Recipe(algorithm=None)": "algorithm must be text, got None",
    "train(dataset='digits', workers=2, epochs=1, name=' ')": "name must be one folder's name, of "
    "printable characters, without / or .. or spaces around it, got  ",
    "train(dataset='digits', workers=2, model=torch.nn.Linear(64, 10), model_config='n=4')": "model"
    "_config has arguments that Linear does not take: n, got n=4; leave it out",
    "train(dataset={'train': [], 'test': []}, workers=2)": "dataset has a part without samples, ",
    "train(dataset={'train': 5, 'val': 5, 'test': 5}, workers=2)": "dataset has both val and test,"
    " got dict; leave in it what is to be validated on",
    "train(dataset=((torch.ones(4, 3, device='meta'), torch.zeros(4).long()),) * 2)": "dataset has "
    "tensors without numbers, on the device meta, got tuple; make them on cpu",
    "Simulator(torch.nn.Linear(3, 2), optimizer=lambda: None)": "optimizer cannot be made: ",
    "Simulator(torch.nn.Linear(3, 2), asyncio.sleep, lr=0.1)": "criterion is an async function",
    "Simulator(torch.nn.Linear(3, 2), optimizer=asyncio.sleep)": "optimizer is an async function",
    "Simulator(torch.nn.Linear(3, 2), lr=lambda epoch: 0.1)": "lr must be a number, got function "
    "<lambda>",
    "Simulator(torch.nn.Linear(3, 2), optimizer=[])": "optimizer must be an optimizer of torch, a "
    "class of such, or a function of the model that makes one, got list",
    "Simulator(torch.nn.Linear(3, 2), regime=[{'epoch': 0, 'lr': 0.1}, {'epoch': 0, 'lr': 0.2}])": (
        "regime has two phases from epoch 0 that set lr; leave one out"
    ),
}
PARTS = {  # methods that are made in Python, which are held to what a spec is held to
    "compressors.topk: TopK('x')": "ratio must be a number, got 'x'",
    "compressors.topk: TopK(True)": "ratio must be a number, got True",
    "compressors.qsgd: QSGD(1.5)": "levels must be a whole number, got 1.5",
    "compressors.qsgd: QSGD(2**63)": "levels must be below 2**63, got 9223372036854775808",
    "memories: Residual(beta='x')": "beta must be a number, got 'x'",
    "memories: DGC(momentum=[])": "momentum must be a number, got []",
    "outer_optimizers.sgd: Nesterov(lr='x')": "lr must be a number, got 'x'",
    "aggregations.krum: Krum('x')": "attackers must be a whole number, got 'x'",
    "attacks.noise: Noise(1, std='x')": "std must be a number, got 'x'",
    "algorithms.fedavg: FedAvg(clients=2.5)": "clients must be a whole number, got 2.5",
}
STEPS = {  # of a simulator of two workers
    "simsgd.recording('a', simulator, resume='x').__enter__()": "resume must be true or false, not",
    "simsgd.recording('a', simulator, metric_mode='min').__enter__()": "metric_mode has no effect",
    "simsgd.recording('a', simulator, quiet='x').__enter__()": "quiet must be true or false, not",
    "simsgd.recording('a', simulator, state=5).__enter__()": "state must be a dict, not int, got 5",
    "listen(type('L', (), {'begin_step': 0, 'end_step': 0})()) or simulator.load_state_dict({})": (
        "simulator is being recorded: its steps cannot jump; load it before the recording begins"
    ),
    "step(5, 5)": "batch has no tensor, got int; give tensors",
    "forward_once(x, y[:2])": "batch has 4 inputs and 2 targets; each input needs a target",
    "engine_for(x, y[:2])": "batch has 4 inputs and 2 targets; each input needs a target",
    "step(x, y, last='yes')": "last must be true or false, not str, got 'yes'",
    "simsgd.recording('a', simulator, metric='loss').__enter__()": "metric gives its columns the "
    "name loss, which is taken or no name, got loss; let",
    "simsgd.recording('/', simulator).__enter__()": "folder names no folder to make, got /; as",
    "step({'x': x, 'm': x[:2]}, y)": "batch has parts of 4 and 2 samples; give each a row for each",
    "step(x, (y, y[:2]))": "batch has parts of 4 and 2 samples; give each a row for each sample",
    "step({'x': x}, (y[:2],))": "batch has 4 inputs and 2 targets; each input needs a target",
    "load_state_dict(simsgd.Simulator(torch.nn.Linear(3, 2), workers=2, lr=0.1, optimizer='Adam')."
    "state_dict())": "checkpoint is of optimizer Adam, and this simulator steps weight by SGD; ",
    "step(x, y, '0')": "epoch must be a whole number of at least 0, got 0",
    "step(x, y, -1)": "epoch must be a whole number of at least 0, got -1",
    "step(x.to('meta'), y)": "batch has a tensor of another form, got meta; give dense tensors, ",
    "step({'x': x, 'ids': list(range(len(x)))}, y)": "batch has list of 4 values, which is not "
    "divided; give a tensor, or leave it out",
    "step({'x': x, 'ids': x[:, 0].numpy()}, y)": "batch has ndarray of 4 values, which is not ",
    "step(__import__('collections').UserDict(x=x), y)": "batch is a mapping of another kind than ",
    "step(x.to_sparse(), y)": "batch has a tensor of another form, got torch.sparse_coo; give ",
    "__setattr__('lr', 0.2)": "lr cannot be set later, got 0.2; give it to Simulator; a regime or ",
    "step(x[0, 0], y)": "batch has a tensor without dimensions, got 1.0; give [B, ...]",
    "load_state_dict(5)": "checkpoint must be a dict, not int, got 5",
    "load_state_dict(simulator.state_dict() | {'parameters': 5})": "checkpoint holds missing or "
    "broken parts",
    "load_state_dict(simulator.state_dict() | {'workers': 4})": "checkpoint belongs to a "
    "simulator of 4 workers, and this one has 2",
    "load_state_dict(simulator.state_dict() | {'steps': -1})": "checkpoint holds -1 as steps, ",
    "load_state_dict(simulator.state_dict() | {'epoch': 'x'})": "checkpoint holds x as epoch, ",
    "load_state_dict(simulator.state_dict() | {'results': [5]})": "checkpoint holds results of ",
    "load_state_dict(simulator.state_dict() | {'optimizer': 5})": "checkpoint holds missing or ",
    "load_state_dict(simulator.state_dict() | {'optimizer': {'name': '', 'inner': 5, 'decayed': "
    "{}}})": "checkpoint holds missing or broken parts",
    "load_state_dict((s := simulator.state_dict()) | {'voices': {n: v | {'compressor': None} for "
    "n, v in s['voices'].items()}})": "checkpoint holds missing or broken parts",
    "load_state_dict((s := simulator.state_dict()) | {'optimizer': s['optimizer'] | {'inner': "
    "s['optimizer']['inner'] | {'state': {0: None}}}})": "checkpoint holds missing or broken parts",
    "load_state_dict(simulator.state_dict() | {'compressor': 5})": "checkpoint holds missing or ",
    "load_state_dict(simulator.state_dict() | {'compress_layers': 5})": "checkpoint holds missing",
    "load_state_dict({**(s := simulator.state_dict()), 'parameters': {n: p.double() for n, p in "
    "s['parameters'].items()}})": "checkpoint has parameters of torch.float64, and the model has "
    "torch.float32",
    "load_state_dict(simulator.state_dict() | {'a': 5, 'b': 5})": "checkpoint has parts that do "
    "not belong here: a, b; leave them out, or give the settings of the simulator that wrote them",
    "load_state_dict((s := simulator.state_dict()) | {'optimizer': s['optimizer'] | {'a': 5}})": (
        "checkpoint has parts that do not belong here: optimizer: a; leave them out, or give"
    ),
    "load_state_dict((s := simulator.state_dict()) | {'voices': {n: v | {'a': {}} for n, v in "
    "s['voices'].items()}})": "checkpoint has parts that do not belong here: weight: a; leave",
    "step(torch.nested.nested_tensor([x, x[:1]], layout=torch.jagged), y)": "batch has a tensor of "
    "another form, got nested; give dense tensors, with a row for each sample",
    "load_state_dict({})": "checkpoint lacks parameters, buffers, compressor, voices, optimizer",
    "evaluation_model('median')": "buffers must be mean or rank0, got median",
    "evaluation_model(worker=2)": "worker must lie in [0, 2), got 2",
    "evaluation_model(worker='x')": "worker must be a whole number, not str, got 'x'",
    "listen(5)": "listener must have methods begin_step and end_step, got 5",
    "end_epoch(5)": "results must be a dict, not int, got 5",
    "end_epoch({5: 1.0})": "results must be text, not int, got 5",
    "end_epoch({'val_loss': 'x'})": "results must have a number as val_loss, got 'x'",
    "end_epoch({'val_loss': None})": "results must have a number as val_loss, got None",
    "end_epoch({'val_loss': torch.ones(2)})": "results must have a number as val_loss, got tensor(",
}
MADE = {  # a simulator of a model
    "5": "criterion must be a function of (output, target), not int, got 5; such as torch.nn.",
    "'mse_loss'": "criterion must be a function of (output, target), not str, got mse_loss;",
    "torch.nn.MSELoss": "criterion is the class MSELoss, not a function of (output, target); "
    "make one, as MSELoss()",
    "torch.nn.CrossEntropyLoss(reduction='sum')": "criterion adds up the losses of samples, and "
    "gradients are those of their mean; use reduction mean",
    "functools.partial(torch.nn.functional.mse_loss, reduction='sum')": "criterion adds up the",
    "samples=5": "samples must be a tensor [2], a number for each worker, got int",
    "samples=torch.ones(3)": "samples must be a tensor [2], a number for each worker, got [3]",
    "samples=torch.tensor([1.0, -1.0])": "samples must be greater than 0 for each, got -1.0",
    "worker_batch='x'": "worker_batch must be a whole number, not str, got 'x'",
    "algorithm=LocalSGD(local_steps=2), local_steps=4": "local_steps is 2 in algorithm LocalSGD(",
    "regime={True: {'lr': 0.1}}": "regime must be keyed by epoch, got {True: {'lr': 0.1}}; as {0:",
    "regime=[{'epoch': True, 'lr': 0.1}]": "regime must have a number of at least 0 as epoch, got",
    "regime={3: {'lr': 0.1, 'step': 5}}": "regime has step in the phase that begins with epoch 3, "
    "got 5; leave it out",
    "regime=[{'lr': 0.1}, {'epoch': 1, 'step': 5, 'lr': 1.0, 'lr_decay_rate': 0.5, 'lr_decay_steps'"
    ": 2}]": "regime has lr_decay_rate in a phase with epoch and step, whichever comes first; let",
    "regime=[{'lr': 0.1}, {'step': 5, 'scheduler': {'name': 'ExponentialLR', 'gamma': 0.5}}]": (
        "scheduler is stepped every epoch, and its phase begins with step 5, got ExponentialLR: gam"
    ),
    "regime=[{'scheduler': {'name': 'StepLR', 'make': lambda own: own}}]": (
        "scheduler must be a dict with name, or make, and the arguments of that class, got {'name':"
        " 'StepLR', 'make': function <lambda>}; as"
    ),
    "param_groups=[{'params': '*', 'lr': lambda epoch: 0.1}]": "param_groups has a group with lr "
    "function <lambda>, which must be a value; let a function give all the groups",
    "param_groups=[{'params': functools.partial(asyncio.sleep, 1), 'lr': 1}]": "params is an async",
    "regime=asyncio.sleep": "regime has the async function sleep; write def without async",
    "worker_batch=0": "worker_batch must be at least 1, got 0",
    "observers=5": "observers must be a list, not int, got 5",
    "observers=[5]": "observers must be functions of a transfer and its message, got 5",
    "wrap_engine=5": "wrap_engine must be a function of an engine, got 5",
    "wrap_engine=lambda own: None": "wrap_engine returns no engine, got NoneType; let it return",
    "transport='gloo'": "transport must be Transport, not str, got 'gloo'",
}


@pytest.mark.parametrize(("call", "line"), CALLS.items())
def test_a_value_of_another_type_is_refused_in_one_line(call, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known = {"simsgd": simsgd, "torch": torch, "np": np, "asyncio": asyncio}
    with pytest.raises(simsgd.SettingError) as refused:
        eval(f"simsgd.{call}", known)
    assert str(refused.value).startswith(line)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("call", "line"), PARTS.items())
def test_a_method_of_another_type_is_not_made(call, line):
    module, made = call.split(": ")
    known = vars(importlib.import_module(f"simsgd.methods.{module}"))
    with pytest.raises(simsgd.SettingError) as refused:
        eval(made, dict(known))
    assert str(refused.value) == line


@pytest.mark.parametrize(("call", "line"), STEPS.items())
def test_a_simulator_refuses_a_value_of_another_type_in_one_line(call, line):
    known = {"x": torch.ones(4, 3), "y": torch.zeros(4, dtype=torch.int64)}
    known |= {"simsgd": simsgd, "torch": torch}
    known["simulator"] = simsgd.Simulator(torch.nn.Linear(3, 2), workers=2, lr=0.1)
    with pytest.raises(simsgd.SettingError) as refused:
        eval(call if call.startswith("simsgd") else f"simulator.{call}", known)
    assert str(refused.value).startswith(line)


def test_a_state_of_other_workers_leaves_a_simulator_as_it_was():
    x, y = torch.ones(4, 3), torch.zeros(4, dtype=torch.int64)
    ours, theirs = (simsgd.Simulator(torch.nn.Linear(3, 2), workers=w, lr=0.1) for w in (2, 4))
    theirs.step(x, y)
    before = repr(ours.state_dict())
    with pytest.raises(simsgd.SettingError, match="of 4 workers, and this one has 2"):
        ours.load_state_dict(theirs.state_dict())
    assert repr(ours.state_dict()) == before
    earlier = {name: part for name, part in ours.state_dict().items() if name != "workers"}
    ours.load_state_dict(earlier)  # an earlier version did not write them


@pytest.mark.parametrize(("arguments", "line"), MADE.items())
def test_a_simulator_of_other_types_is_not_made(arguments, line):
    known = {"simsgd": simsgd, "torch": torch, "functools": functools, "LocalSGD": LocalSGD}
    known["asyncio"] = asyncio
    with pytest.raises(simsgd.SettingError) as refused:
        eval(f"simsgd.Simulator(torch.nn.Linear(3, 2), {arguments}, workers=2, lr=0.1)", known)
    assert str(refused.value).startswith(line)


NUMPY = {  # what is called with numpy's numbers and texts, and with Python's
    "count(np.float32(0.1), np.int64(1000))": "count(0.1, 1000)",
    "Config(lr=np.float32(0.1), workers=np.int64(2), nesterov=np.True_)": (
        "Config(lr=0.1, workers=2, nesterov=True)"
    ),
    "list_names(np.str_('topologies'), np.int32(4))": "list_names('topologies', 4)",
    "methods.topology('ring', workers=np.uint8(4)).name": "methods.topology('ring', 4).name",
    "Simulator(torch.nn.Linear(3, 2), worker_batch=np.int64(2), regime=[{'epoch': np.int64(0), "
    "'lr': np.float16(0.1)}]).components.regime.at(0, 0)": "Simulator(torch.nn.Linear(3, 2), "
    "regime={0: {'lr': 0.1}}).components.regime.at(0, 0)",
    "tune_consensus(np.int64(4), elements=4, rounds=2, stepsizes=np.float32([0.1])).stepsizes": (
        "tune_consensus(4, elements=4, rounds=2, stepsizes=[0.1]).stepsizes"
    ),
}


@pytest.mark.parametrize(("call", "same"), NUMPY.items())
def test_numbers_of_numpy_are_those_of_python(call, same):
    known = {"simsgd": simsgd, "torch": torch, "np": np}
    assert repr(eval(f"simsgd.{call}", known)) == repr(eval(f"simsgd.{same}", known))


def test_settings_made_directly_have_those_of_their_method_as_those_of_a_mapping_do():
    direct = simsgd.Config(method="diloco", local_steps=7)
    assert direct == simsgd.Config.of({"method": "diloco", "local_steps": 7})
    assert (direct.algorithm, direct.local_steps) == ("diloco", 7)
    assert dataclasses.replace(direct, local_steps=9).local_steps == 9

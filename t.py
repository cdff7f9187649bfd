import os,sys
os.environ["TF_CPP_MIN_LOG_LEVEL"]="3"
import numpy as np, tensorflow as tf
if sys.argv[1]=="tf.keras": keras=tf.keras
else:
    import importlib; keras=importlib.import_module(sys.argv[1])
jit = len(sys.argv)>2
import legacyga as micro_batching
rs=np.random.RandomState(0)
x=rs.randint(0,20,(72,3)); z=rs.randn(72,4).astype("float32"); y=(rs.rand(72)>.5).astype("float32"); w=rs.rand(72).astype("float32")
def model():
    keras.utils.set_random_seed(0) if hasattr(keras.utils,"set_random_seed") else tf.random.set_seed(0)
    a=keras.layers.Input((3,),dtype="int32"); b=keras.layers.Input((4,))
    e=keras.layers.Flatten()(keras.layers.Embedding(20,4)(a))
    h=keras.layers.Concatenate()([e,b])
    h=keras.layers.Dense(8,activation="tanh",kernel_regularizer="l2")(h)
    m=keras.models.Model([a,b],keras.layers.Dense(1,activation="sigmoid")(h))
    kw=dict(jit_compile=jit) if jit or hasattr(keras,"ops") else {}
    ck=dict(weighted_metrics=[]) if not tf.__version__.startswith(("2.2","2.4.")) else {}
    m.compile(keras.optimizers.Adam(.05),"binary_crossentropy",metrics=["accuracy",keras.metrics.AUC()],**kw)
    return m
def go(size):
    m=model()
    ws=m.get_weights()
    r=np.random.RandomState(1); m.set_weights([r.randn(*v.shape)*.3 for v in ws])
    if size: micro_batching.micro_batch(m,size)
    h=m.fit([x,z],y,batch_size=32,epochs=3,sample_weight=w,shuffle=False,verbose=0)
    o=m.optimizer
    return m.get_weights(),h.history,int(o.iterations.numpy())
a=go(None)
for size in (8,5,32,1,100):
    b=go(size)
    print(size,max(np.abs(p-q).max() for p,q in zip(a[0],b[0])),b[2]==a[2],{k.split("_")[0]:float(np.abs(np.array(b[1][k])-np.array(a[1][ka])).max()) for k,ka in zip(sorted(b[1]),sorted(a[1]))})
